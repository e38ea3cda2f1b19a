"""`tritonclient`, the public client of the Open Inference Protocol, against a real server."""

from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from service.bundle.reader import Bundle
from service.images.decode import decode_image
from tests.e2e.server_process import ServerProcess, serve_command
from tests.support.photos import make_photo
from tests.support.serving import labels_of, send_image, to_base64

MODEL = "tiny-open"
PHOTOS = [make_photo(seed) for seed in range(3)]
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def server(open_bundle: Bundle) -> Iterator[ServerProcess]:
    with ServerProcess(*serve_command(open_bundle, "--label-store", "memory")) as server:
        server.open_client().close()
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[triton.InferenceServerClient]:
    host, port = server.find_address()
    with triton.InferenceServerClient(f"{host}:{port}") as client:
        yield client


@pytest.fixture(scope="module")
def wanted(server: ServerProcess) -> list[dict[str, float]]:
    """The trained labels' scores of `/predict` for the photos."""
    asked = {"top_k": "1000", "label_set": "trained"}
    with server.open_client() as client:
        answers = [send_image(client, photo, params=asked) for photo in PHOTOS]
    return [dict(labels_of(answer)) for answer in answers]


def make_image_input(photos: list[bytes], *, binary: bool) -> triton.InferInput:
    values = photos if binary else [to_base64(photo).encode() for photo in photos]
    tensor = triton.InferInput("image", [len(photos)], "BYTES")
    tensor.set_data_from_numpy(np.array(values, np.object_), binary_data=binary)
    return tensor


def read_scores(result: triton.InferResult) -> list[dict[str, float]]:
    names = result.as_numpy("labels")
    labels = [name.decode() if isinstance(name, bytes) else name for name in names]
    return [dict(zip(labels, row.tolist(), strict=True)) for row in result.as_numpy("scores")]


def assert_same(answered: list[dict[str, float]], wanted: list[dict[str, float]]) -> None:
    for scores, same in zip(answered, wanted, strict=True):
        assert scores == pytest.approx(same, abs=TOLERANCE)


@pytest.mark.parametrize("binary", [True, False])
def test_photos_get_the_scores_of_predict(
    client: triton.InferenceServerClient, wanted: list[dict[str, float]], binary: bool
) -> None:
    outputs = [triton.InferRequestedOutput(n, binary_data=binary) for n in ("scores", "labels")]
    tensor = make_image_input(PHOTOS, binary=binary)
    sent = {"sequence_id": 5, "sequence_start": True, "priority": 3, "timeout": 60_000_000}
    result = client.infer(MODEL, [tensor], outputs=outputs, request_id="mine", **sent)
    assert result.get_response()["id"] == "mine"
    assert_same(read_scores(result), wanted)


def test_pixels_get_the_scores_of_predict_without_naming_outputs(
    client: triton.InferenceServerClient, open_bundle: Bundle, wanted: list[dict[str, float]]
) -> None:
    pixels = np.stack([decode_image(p, open_bundle.card.input, 10**6).pixels for p in PHOTOS])
    for binary in (True, False):
        tensor = triton.InferInput("pixels", list(pixels.shape), "UINT8")
        tensor.set_data_from_numpy(pixels, binary_data=binary)
        assert_same(read_scores(client.infer(MODEL, [tensor], "1.0")), wanted)


def test_error_reaches_the_clients_exception_and_the_next_request_is_answered(
    client: triton.InferenceServerClient, wanted: list[dict[str, float]]
) -> None:
    with pytest.raises(InferenceServerException, match="The file is damaged") as caught:
        client.infer(MODEL, [make_image_input([b"junk"], binary=True)])
    assert caught.value.status() == "400"
    with pytest.raises(InferenceServerException, match="no such model") as caught:
        client.infer("other", [make_image_input(PHOTOS, binary=True)])
    assert caught.value.status() == "404"
    result = client.infer(MODEL, [make_image_input(PHOTOS, binary=True)])
    assert_same(read_scores(result), wanted)
