"""Intruders: without a key nothing happens, and no key ever reaches a log or an answer."""

from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from service.bundle.reader import Bundle
from tests.e2e.server_process import ServerProcess
from tests.faults.conftest import serve, serve_command
from tests.support.serving import assert_problem, assert_still_serving, send_image

PREDICT, ADMIN = "predict-key-000001", "admin-key-00000001"
PETS = {"name": "pets", "labels": ["cat"]}


@pytest.fixture(scope="module")
def guarded(
    open_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    file = tmp_path_factory.mktemp("keys") / "admin"
    file.write_text(ADMIN)
    variables = {"ML_DECODER_PREDICT_KEYS": PREDICT, "ML_DECODER_ADMIN_KEYS": f"@{file}"}
    with serve(open_bundle, "--log-level", "debug", **variables) as (server, _):
        yield server


@pytest.fixture
def client(guarded: ServerProcess) -> Iterator[httpx.Client]:
    with guarded.open_client() as client:
        yield client
        assert send_image(client, headers={"X-API-Key": PREDICT}).status_code == 200
    assert PREDICT not in guarded.stderr
    assert ADMIN not in guarded.stderr


@pytest.mark.parametrize(
    ("key", "code"),
    [(None, "unauthorized"), ("wrong-key-00000001", "unauthorized"), (PREDICT, "forbidden"),
     (ADMIN, None)],
)  # fmt: skip
def test_label_set_is_changed_with_an_admin_key_only(
    client: httpx.Client, key: str | None, code: str | None
) -> None:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    assert client.put("/labels/pets", json=PETS, headers=headers).json().get("code") == code


def test_key_that_is_too_short_stops_the_start_and_is_not_shown(
    open_bundle: Bundle, tmp_path: Path
) -> None:
    missing = f"@{tmp_path}/none"
    for keys in ("tooshort", missing):
        command = (*serve_command(open_bundle.path), "--log-level", "error")
        with ServerProcess(*command, ML_DECODER_ADMIN_KEYS=keys) as server:
            assert server.wait() == 2
            assert "admin_keys" in server.stderr
            assert "tooshort" not in server.stderr


@pytest.mark.parametrize(
    "url",
    ["https://127.0.0.1/x", "https://169.254.169.254/latest/meta-data", "https://[::1]/",
     "https://2130706433/", "https://localhost/", "file:///etc/passwd", "http://example.com/"],
)  # fmt: skip
def test_private_url_is_refused_without_details(fetching: httpx.Client, url: str) -> None:
    problem = assert_problem(fetching.post("/predict", json={"url": url}), 422, "url_not_usable")
    problem.pop("request_id")
    # The same words as for every other URL: clients learn nothing from them.
    other = fetching.post("/predict", json={"url": "https://no-such-host.invalid/"}).json()
    other.pop("request_id")
    assert problem == other


@pytest.fixture(scope="module")
def fetching(open_bundle: Bundle) -> Iterator[httpx.Client]:
    with serve(open_bundle, "--url-input", "true") as (_, client):
        yield client
        assert_still_serving(client)
