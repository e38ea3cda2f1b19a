"""Intruders: without a key nothing happens, and no key ever reaches a log or an answer."""

from collections.abc import Iterator

import httpx2 as httpx
import pytest

from service.bundle.reader import Bundle
from tests.e2e.server_process import ServerProcess
from tests.faults.conftest import serve
from tests.support.serving import send_image

PREDICT, ADMIN = "predict-key-000001", "admin-key-00000001"
PETS = {"name": "pets", "labels": ["cat"]}
V2_PATHS = ("", "/ready", "/infer", "/versions/1/ready", "/versions/1/infer")


@pytest.fixture(scope="module")
def guarded(
    open_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    file = tmp_path_factory.mktemp("keys") / "predict"
    file.write_text(f"{PREDICT}\n")
    flags = ("--predict-keys-file", str(file), "--admin-keys", ADMIN)
    with serve(open_bundle, "--log-level", "debug", *flags) as (server, _):
        yield server


@pytest.fixture
def client(guarded: ServerProcess) -> Iterator[httpx.Client]:
    with guarded.open_client() as client:
        yield client
        assert send_image(client, headers={"X-API-Key": PREDICT}).status_code == 200
    assert PREDICT not in guarded.stderr
    assert ADMIN not in guarded.stderr


@pytest.mark.parametrize(
    ("known", "unknown"),
    [
        ("/v2/models/tiny-open", "/v2/models/x"),
        *((f"/v2/models/tiny-open{path}", f"/v2/models/{'x' * 300}{path}") for path in V2_PATHS),
        ("/v2/models/tiny-open/versions/1", "/v2/models/tiny-open/versions/9"),
        ("/labels/trained", "/labels/x"),
        ("/labels/trained", "/labels/%00no name"),
        ("/labels/trained/calibrate?label=cat", "/labels/x/calibrate"),
    ],
)
def test_without_a_key_no_answer_depends_on_a_name(
    client: httpx.Client, known: str, unknown: str
) -> None:
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        existing, missing = (client.request(method, path) for path in (known, unknown))
        assert existing.status_code == missing.status_code
        assert existing.status_code in (401, 405)
        assert existing.headers.keys() == missing.headers.keys()
        request_id = missing.headers["x-request-id"]
        assert existing.text.replace(existing.headers["x-request-id"], request_id) == missing.text


def test_names_are_answered_with_a_key(client: httpx.Client) -> None:
    for path, status in (("tiny-open", 200), ("tiny-open/versions/9", 404), ("x/ready", 404)):
        answer = client.get(f"/v2/models/{path}", headers={"X-API-Key": PREDICT})
        assert answer.status_code == status


def test_keys_in_arguments_warn_and_files_do_not(guarded: ServerProcess) -> None:
    warning = "--admin-keys: other users of this machine can read arguments: use --admin-keys-file"
    assert warning in guarded.stderr
    assert "--predict-keys" not in guarded.stderr
