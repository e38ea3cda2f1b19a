"""Tests of `/v2`: the protocol's metadata, inference in all its forms, and its errors."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from service.bundle.reader import Bundle
from service.http.dialects.open_inference import request
from service.http.dialects.open_inference.request import HEADER_LENGTH
from service.images.decode import decode_image
from tests.support.photos import make_photo
from tests.support.serving import PHOTO, labels_of, send_image, serve_app, to_base64
from tests.support.tiny_bundle import write_open_bundle

BUNDLE = "open_bundle"
MODEL = "/v2/models/tiny-open"
INFER = f"{MODEL}/infer"
TOLERANCE = 1e-5


def image_input(*photos: bytes, **changes: Any) -> dict[str, Any]:
    """An input of photos as base64 in JSON."""
    data = [to_base64(photo) for photo in photos or (PHOTO,)]
    tensor = {"name": "image", "datatype": "BYTES", "shape": [len(data)], "data": data}
    return tensor | changes


def pixels_input(*photos: bytes, bundle: Bundle, **changes: Any) -> dict[str, Any]:
    """An input of decoded photos as nested numbers in JSON."""
    contract = bundle.card.input
    pixels = [decode_image(photo, contract, 10**6).pixels.tolist() for photo in photos]
    shape = [len(pixels), contract.height, contract.width, 3]
    return {"name": "pixels", "datatype": "UINT8", "shape": shape, "data": pixels} | changes


def post(client: TestClient, *inputs: Any, path: str = INFER, **members: Any) -> Any:
    return client.post(path, json={"inputs": list(inputs), **members})


def infer(client: TestClient, *inputs: Any, **members: Any) -> dict[str, Any]:
    """Returns the outputs of a good answer by their names."""
    response = post(client, *inputs, **members)
    assert response.status_code == 200, response.text
    return {output["name"]: output for output in response.json()["outputs"]}


def post_binary(client: TestClient, head: dict[str, Any], raw: bytes) -> Any:
    text = json.dumps(head).encode()
    return client.post(INFER, content=text + raw, headers={HEADER_LENGTH: str(len(text))})


def pack(*elements: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def binary_input(raw: bytes, shape: list[int], **changes: Any) -> dict[str, Any]:
    tensor = {"name": "image", "datatype": "BYTES", "shape": shape}
    return {**tensor, "parameters": {"binary_data_size": len(raw)}, **changes}


def assert_error(response: Any, status: int, *words: str) -> None:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert list(response.json()) == ["error"]
    for word in words:
        assert word in response.json()["error"]


def score_by_predict(client: TestClient, photo: bytes, **parameters: Any) -> dict[str, float]:
    answer = send_image(client, photo, params={"top_k": 1000, **parameters})
    return dict(labels_of(answer))


def score_by_infer(outputs: dict[str, Any], row: int = 0) -> dict[str, float]:
    rows = np.array(outputs["scores"]["data"]).reshape(outputs["scores"]["shape"])
    return dict(zip(outputs["labels"]["data"], rows[row].tolist(), strict=True))


@pytest.mark.parametrize("kind", ["application/json", "application/octet-stream", "image/png"])
def test_tensors_are_read_with_every_content_type(client: TestClient, kind: str) -> None:
    body = json.dumps({"inputs": [image_input()]})
    response = client.post(INFER, content=body, headers={"Content-Type": kind})
    assert response.status_code == 200, response.text


def test_server_describes_itself_and_its_health(client: TestClient) -> None:
    server = client.get("/v2").json()
    assert server["name"] == "ml-decoder-serve"
    assert set(server["extensions"]) == {"binary_tensor_data", "classification"}
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}


def test_model_describes_itself(client: TestClient) -> None:
    model = client.get(MODEL).json()
    assert model["inputs"] == [
        {"name": "image", "datatype": "BYTES", "shape": [-1]},
        {"name": "pixels", "datatype": "UINT8", "shape": [-1, 16, 16, 3]},
    ]
    assert model["outputs"] == [
        {"name": "scores", "datatype": "FP32", "shape": [-1, -1]},
        {"name": "labels", "datatype": "BYTES", "shape": [-1]},
    ]


def test_photos_get_the_scores_of_predict_in_their_order(client: TestClient) -> None:
    photos = [make_photo(seed) for seed in range(4)]
    unknown = {"labelset": "trained", "nothing": None, "nested": {"a": [1]}}
    # In a column; what is unknown is ignored.
    texts = [[to_base64(photo)] for photo in photos]
    tensor = image_input(shape=[4, 1], data=texts, parameters=unknown)
    asked = [{"name": name, "parameters": unknown} for name in ("scores", "labels")]
    answer = post(client, tensor, id="mine-1", outputs=asked, parameters=unknown).json()
    assert answer["id"] == "mine-1"
    assert answer["parameters"] == {"label_set": "trained", "label_set_version": "1.0"}
    outputs = {output["name"]: output for output in answer["outputs"]}
    assert outputs["scores"]["shape"] == [4, 5]
    for row, photo in enumerate(photos):
        assert score_by_infer(outputs, row) == pytest.approx(
            score_by_predict(client, photo, label_set="trained"), abs=TOLERANCE
        )


@pytest.mark.parametrize(
    ("trained", "default", "shown"),
    [(False, None, "everyday"), (True, "everyday,trained", "everyday+trained")],
)
def test_columns_without_a_label_set_are_one_set_unless_the_settings_name_some(
    tmp_path: Path, *, trained: bool, default: str | None, shown: str
) -> None:
    bundle = write_open_bundle(tmp_path, trained=trained)
    settings = {"label_store": "memory", "default_label_set": default}
    with serve_app(bundle.path, **settings) as client:
        answer = post(client, image_input()).json()
        assert answer["parameters"]["label_set"] == shown
        assert (client.get("/info").json()["head"] is None) != trained
        assert ("hidden" in answer["parameters"], "id" in answer) == (False, False)
        outputs = {output["name"]: output for output in answer["outputs"]}
        wanted = score_by_predict(client, PHOTO, label_set=shown.split("+"))
        assert score_by_infer(outputs) == pytest.approx(wanted, abs=TOLERANCE)


def test_labels_that_an_earlier_set_answers_are_a_parameter_of_the_answer(
    client: TestClient,
) -> None:
    client.put("/labels/mine", json={"labels": ["lamp", "yak"]}).raise_for_status()
    for label_set, hidden in (
        ("everyday, mine", "labels answered by a set named before theirs: 1 of mine"),
        ("mine,everyday", None),
    ):
        answer = post(client, image_input(), parameters={"label_set": label_set}).json()
        assert answer["parameters"]["label_set"] == "+".join(label_set.replace(",", " ").split())
        assert answer["parameters"].get("hidden") == hidden


def test_json_may_have_as_many_pixels_as_a_request_and_little_else(
    client: TestClient, open_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(request, "MAX_PARTS", 100)
        nested = pixels_input(*[PHOTO] * 16, bundle=open_bundle)
        flat = nested | {"data": np.array(nested["data"]).ravel().tolist()}
        for tensor in (nested, flat):
            assert infer(client, tensor)["scores"]["shape"] == [16, 5]
        assert_error(post(client, nested, parameters={"x": [[]] * 200}), 400, "lists")
        assert_error(post(client, flat, parameters={"x": [0.5] * 5000}), 400, "values")


def test_photos_get_the_same_scores_in_every_form(client: TestClient, open_bundle: Bundle) -> None:
    photos = [make_photo(seed) for seed in (1, 2)]
    wanted = infer(client, image_input(*photos))["scores"]["data"]
    nested = pixels_input(*photos, bundle=open_bundle)
    flat = np.array(nested["data"], np.uint8).ravel()
    binary = binary_input(flat.tobytes(), [2, 16, 16, 3], name="pixels", datatype="UINT8")
    texts = pack(*(to_base64(photo).encode() for photo in photos))
    files = ((binary_input(raw, [2]), raw) for raw in (pack(*photos), texts))
    in_json = ((tensor, b"") for tensor in (nested, nested | {"data": flat.tolist()}))
    for tensor, raw in (*in_json, *files, (binary, flat.tobytes())):
        response = post_binary(client, {"inputs": [tensor]}, raw)
        assert response.json()["outputs"][0]["data"] == pytest.approx(wanted, abs=TOLERANCE)


def test_all_outputs_are_binary_if_the_request_says_so(client: TestClient) -> None:
    """Their bytes are read by `tests/e2e/test_triton_client.py`."""
    response = post(client, image_input(), parameters={"binary_data_output": True})
    outputs = json.loads(response.content[: int(response.headers[HEADER_LENGTH])])["outputs"]
    assert ["binary_data_size" in output["parameters"] for output in outputs] == [True, True]


def test_classification_gives_the_best_labels_with_score_and_column(client: TestClient) -> None:
    asked = [{"name": "scores", "parameters": {"classification": 2}}]
    outputs = infer(client, image_input(make_photo(0), make_photo(1)), outputs=asked)
    assert (outputs["scores"]["datatype"], outputs["scores"]["shape"]) == ("BYTES", [2, 2])
    whole = infer(client, image_input(make_photo(0), make_photo(1)))
    for row in range(2):
        scores = score_by_infer(whole, row)
        best = sorted(scores, key=lambda name: -scores[name])[:2]
        for text, name in zip(outputs["scores"]["data"][2 * row :], best, strict=False):
            score, column, label = text.split(":", 2)
            assert (label, whole["labels"]["data"][int(column)]) == (name, name)
            assert float(score) == pytest.approx(scores[name], abs=2e-6)
    asked[0]["parameters"] = {"classification": 10**9}
    (alone,) = infer(client, image_input(), outputs=asked).values()
    assert alone["shape"] == [1, 5], "as many classes as there are labels"


def test_registered_set_is_served_in_the_required_version(client: TestClient) -> None:
    version = int(client.put("/labels/zoo", json={"labels": ["panda"]}).json()["version"])
    parameters = {"label_set": "zoo", "min_version": version}
    assert infer(client, image_input(), parameters=parameters)["labels"]["data"] == ["panda"]
    late = {"label_set": "zoo", "min_version": version + 1000}
    assert_error(post(client, image_input(), parameters=late), 400)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/v2/models/other", "Model 'other' is not served: use tiny-open"),
        (f"{MODEL}/versions/2.0", "Version '2.0' is not served: use 1.0"),
        ("/v2/models/other/ready", "Model 'other'"),
        ("/v2/models/other/versions/1.0", "Model 'other'"),
        ("/v2/nowhere", "Not found"),
    ],
)
def test_unknown_model_version_and_path_are_404_naming_the_served_ones(
    client: TestClient, path: str, says: str
) -> None:
    assert_error(client.get(path), 404, says)
    assert_error(client.post(f"{path}/infer", json={"inputs": [image_input()]}), 404)


BAD_INPUTS: dict[str, tuple[dict[str, Any], str]] = {
    "shape says more": ({"shape": [2]}, "1 values, and by its shape 2"),
    "shape says less": ({"data": ["", ""]}, "2 values, and by its shape 1"),
    "zero photos": ({"shape": [0], "data": []}, "1 to 16 photos"),
    "too many photos": ({"shape": [17], "data": [""] * 17}, "1 to 16 photos"),
    "wrong rank": ({"shape": [1, 1, 1]}, "[B] or [B, 1]"),
    "wrong datatype": ({"datatype": "FP32"}, "datatype BYTES"),
    "unknown input": ({"name": "imag"}, "should be 'image' or 'pixels'"),
    "lone surrogate": ({"name": "\ud800"}, "inputs"),
    "no data": ({"data": None}, "must have a list as 'data', or binary data"),
    "data is numbers": ({"data": [1]}, "base64 texts"),
    "data is not base64": ({"data": ["data:image/png,AAAA"]}, "base64"),
    "no photo": ({"data": [to_base64(b"junk")]}, "damaged or is not an image"),
    "svg": ({"data": [to_base64(b"<svg xmlns='x'></svg>")]}, "not supported"),
    "bytes that did not come": ({"data": None, "parameters": {"binary_data_size": 5}}, "bytes"),
}


BAD_PIXELS: dict[str, dict[str, Any]] = {
    "planes first": {"shape": [1, 3, 16, 16]},
    "shape says more": {"shape": [2, 16, 16, 3]},
    "negative": {"data": [-1] * 768},
    "huge": {"data": [2**70] * 768},
    "fractions": {"data": [0.5] * 768},
    "texts": {"data": ["0"] * 768},
    "ragged": {"data": [[0], 0]},
    "objects": {"data": {"a": 1}},
}


@pytest.mark.parametrize("case", BAD_PIXELS)
def test_bad_pixels_are_refused(client: TestClient, open_bundle: Bundle, case: str) -> None:
    tensor = pixels_input(PHOTO, bundle=open_bundle, **BAD_PIXELS[case])
    assert_error(post(client, tensor), 400)


def output(name: str, **parameters: Any) -> dict[str, Any]:
    return {"outputs": [{"name": name, "parameters": parameters}]}


BAD_REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    **{case: ({"inputs": [image_input(**changes)]}, words)
       for case, (changes, words) in BAD_INPUTS.items()},
    "no input": ({"inputs": []}, "'inputs': List"),
    "both inputs": ({"inputs": [image_input(), image_input(name="pixels")]}, "'inputs': List"),
    "duplicate outputs": ({"outputs": [{"name": "scores"}, {"name": "scores"}]}, "more than once"),
    "unknown output": (output("logits"), "should be 'scores' or 'labels'"),
    "classes of the names": (output("labels", classification=1), "output 'scores'"),
    "parameter of predict": ({"parameters": {"top_k": 3}}, "'top_k' is for /predict"),
    "shared memory": (output("scores", shared_memory_region=""), "Shared memory"),
    "timeout is negative": ({"parameters": {"timeout": -1}}, "parameters.timeout"),
    "version below 0": ({"parameters": {"min_version": -1}}, "'min_version': Input should be"),
    "unknown label set": ({"parameters": {"label_set": "nowhere"}}, "'nowhere'"),
    "id is endless": ({"id": "x" * 5000}, "id"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_bad_request_is_refused(client: TestClient, case: str) -> None:
    members, words = BAD_REQUESTS[case]
    content = json.dumps({"inputs": [image_input()], **members})
    assert_error(client.post(INFER, content=content), 400, words)


@pytest.mark.parametrize(
    ("deadline_ms", "timeouts"),
    [
        (30_000, {1: 504, None: 200, 0: 200, 60_000_000: 200, 2**64 - 1: 200}),
        (0.001, {60_000_000: 504, 0: 504}),
    ],
)
def test_timeout_in_microseconds_shortens_the_deadline_and_never_lengthens_it(
    open_bundle: Bundle, deadline_ms: float, timeouts: dict[int | None, int]
) -> None:
    with serve_app(open_bundle.path, deadline_ms=deadline_ms) as client:
        for timeout, status in timeouts.items():
            answer = post(client, image_input(), parameters={"timeout": timeout})
            assert answer.status_code == status, answer.text


def test_alias_answers_in_every_route_of_the_model_by_its_own_name(open_bundle: Bundle) -> None:
    with serve_app(open_bundle.path, model_alias="tags of mine") as client:
        for name in ("tags of mine", "tiny-open"):
            for version in ("", "/versions/1.0"):
                path = f"/v2/models/{name.replace(' ', '%20')}{version}"
                model = client.get(path).json()
                assert (model["name"], model["versions"]) == (name, ["1.0"])
                assert client.get(f"{path}/ready").json() == {"name": name, "ready": True}
                answer = post(client, image_input(), path=f"{path}/infer").json()
                assert (answer["model_name"], answer["model_version"]) == (name, "1.0")
            assert_error(client.get(f"{path.removesuffix('1.0')}2.0/ready"), 404)
        assert_error(client.get("/v2/models/tags"), 404)


BAD_BINARY: dict[str, tuple[list[int], bytes]] = {
    "ends within a length": ([1], b"\x01\x00"),
    "ends within a value": ([1], struct.pack("<I", 100) + b"x"),
    "length of four gigabytes": ([1], b"\xff\xff\xff\xff"),
    "more values than the shape": ([1], pack(PHOTO, PHOTO)),
    "nothing": ([1], b""),
}


@pytest.mark.parametrize("case", BAD_BINARY)
def test_bad_binary_tensor_is_refused(client: TestClient, case: str) -> None:
    shape, raw = BAD_BINARY[case]
    assert_error(post_binary(client, {"inputs": [binary_input(raw, shape)]}, raw), 400)


@pytest.mark.parametrize("length", ["-1", "1e3", "9" * 5000, "999999", "", "٣"])
def test_bad_header_length_is_refused(client: TestClient, length: str) -> None:
    raw = pack(PHOTO)
    headers = {HEADER_LENGTH: length.encode()}
    text = json.dumps({"inputs": [binary_input(raw, [1])]}).encode()
    assert_error(client.post(INFER, content=text + raw, headers=headers), 400)


def test_binary_size_must_be_that_of_the_bytes(client: TestClient) -> None:
    raw = pack(PHOTO)
    for size in (len(raw) - 1, len(raw) + 1, 0):
        tensor = binary_input(raw, [1], parameters={"binary_data_size": size})
        assert_error(post_binary(client, {"inputs": [tensor]}, raw), 400, "binary_data_size")
    both = binary_input(raw, [1], data=[to_base64(PHOTO)])
    assert_error(post_binary(client, {"inputs": [both]}, raw), 400, "both")
