"""Connections and arguments; every test with `kind` runs for both clients."""

import asyncio
import base64
import json
import logging
import math
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx2 as httpx
import pytest

from ml_decoder_client import AsyncClient, Client, ClientError, ServiceUnreachable, calls
from tests.client.conftest import LABEL_SET, Fake
from tests.e2e.server_process import ROOT
from tests.support.photos import make_photo

PHOTO = make_photo()
NAMES = [f"name {number}" for number in range(1000)]


@pytest.fixture
def held(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The fake answers only when this is set."""
    service, _ = fake
    answer, event = service.answer, threading.Event()

    def wait_and_answer(handler: BaseHTTPRequestHandler) -> None:
        event.wait()
        answer(handler)

    monkeypatch.setattr(service, "answer", wait_and_answer)
    yield event
    event.set()


def test_truncated_response_is_a_lost_connection(kind: Any, fake: Fake) -> None:
    service, url = fake
    cut = (200, {"Content-Length": "10000", "Connection": "close"})
    service.answers = [cut, (200, {})]
    with kind(url) as client:
        assert client.predict(PHOTO).request_id == "1"
    assert len(service.requests) == 2
    service.answers = [cut]
    with kind(url, retries=0) as client, pytest.raises(ServiceUnreachable, match="lost: peer"):
        client.predict(PHOTO)


@pytest.mark.usefixtures("held")
def test_error_names_the_timeout_if_the_service_is_too_slow(kind: Any, fake: Fake) -> None:
    url = fake[1]
    words = rf"^no response from {url} within 0\.1 s \(timeout_seconds\)$"
    with kind(url, timeout_seconds=0.1) as client, pytest.raises(ServiceUnreachable, match=words):
        client.info()


def test_timeout_grows_with_labels_and_photos() -> None:
    client = Client("http://localhost", timeout_seconds=0.5)
    for call in (
        calls.register_label_set("set", NAMES),
        calls.replace_label_set("set", NAMES),
        calls.change_thresholds("set", dict.fromkeys(NAMES, 0.5)),
        calls.calibrate_label("set", "yak", [PHOTO] * 30, [PHOTO] * 10),
    ):
        timeout = client._build_request(call).extensions["timeout"]
        assert (timeout["read"], timeout["connect"]) == (20.5, 0.5)


@pytest.mark.anyio
async def test_waiting_for_a_free_connection_has_no_timeout(
    fake: Fake, held: threading.Event
) -> None:
    service, url = fake
    service.body = json.dumps(LABEL_SET).encode()
    client = AsyncClient(url, timeout_seconds=0.1, retries=0, connections=1)
    writes = [asyncio.create_task(client.register_label_set("set", NAMES)) for _ in range(3)]
    done, _ = await asyncio.wait(writes, timeout=0.3)
    assert not done, "one has the connection, two wait for it"
    held.set()
    assert [made.version for made in await asyncio.gather(*writes)] == ["1"] * 3
    await client.close()


@pytest.mark.anyio
async def test_cancelled_calls_release_their_connections(fake: Fake) -> None:
    async with AsyncClient(fake[1], retries=0, connections=2) as client:
        for steps in range(60):
            tasks = [asyncio.create_task(client.info()) for _ in range(6)]
            for _ in range(steps):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        answer = await asyncio.wait_for(client.predict(PHOTO), timeout=30)
        assert answer.request_id == "1"


@pytest.mark.parametrize(
    "url",
    [
        *("http://localhost:abc", "localhost:8000", "", "ftp://localhost", "http://"),
        *("http://localhost:65616", "http://localhost:-1", "http://localhost:0"),
        *("http://\udcff", "http://a..b", f"http://{'a' * 64}", "http://localhost/?key=1"),
    ],
)
def test_invalid_address_is_refused_by_the_constructor(url: str) -> None:
    with pytest.raises(ValueError, match="use one like http://localhost:8000"):
        Client(url)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"api_key": "clé"}, "api_key must be printable ASCII"),
        ({"api_key": "key\n"}, "api_key must be printable ASCII"),
        ({"api_key": ""}, "api_key must be printable ASCII"),
        ({"connections": 0}, "connections must be at least 1; it is 0"),
        ({"retries": -1}, "retries must be at least 0"),
        ({"timeout_seconds": 0}, "timeout_seconds must be above 0"),
        ({"timeout_seconds": -1}, "timeout_seconds must be above 0"),
        ({"timeout_seconds": math.nan}, "timeout_seconds must be above 0"),
        ({"timeout_seconds": math.inf}, "above 0 and at most 86400; it is inf"),
    ],
)
def test_argument_out_of_range_is_refused_by_the_constructor(
    options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        Client(**options)
    Client(api_key="two words")


def test_connections_are_reused(kind: Any, fake: Fake) -> None:
    service, url = fake
    with kind(url, connections=2) as client:
        list(client.predict_many([PHOTO] * 40, at_once=8))
    assert len(service.requests) == 40
    assert len(service.connections) <= 2


_FORKED = """
import os, sys
from ml_decoder_client import Client

client = Client(sys.argv[1])
client.predict(b"photo")
child = os.fork()
client.predict(b"photo")
if child:
    _, status = os.waitpid(child, 0)
    client.predict(b"photo")
    sys.exit(status)
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_process_opens_its_own_connections(fake: Fake) -> None:
    service, url = fake
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client")}
    command = [sys.executable, "-c", _FORKED, url]
    subprocess.run(command, env=environment, check=True, timeout=60)
    assert len(service.requests) == 4
    assert len(service.connections) == 2, "one of each process"


def test_requests_carry_the_key_and_keep_the_path_of_the_address(kind: Any, fake: Fake) -> None:
    service, url = fake
    with kind(f"{url}/tags/", api_key="sesame") as client:
        client.predict(PHOTO)
        client.delete_label_set("a/b", if_version="7")
    assert [request[:2] for request in service.requests] == [
        ("POST", "/tags/predict"),
        ("DELETE", "/tags/labels/a%2Fb"),
    ]
    for _, _, headers in service.requests:
        assert headers["Authorization"] == "Bearer sesame"
    assert service.requests[1][2]["If-Match"] == '"7"'


@pytest.mark.parametrize(
    ("user", "basic"), [("u:p", b"u:p"), ("u", b"u:"), ("a%40b:%2540", b"a@b:%40")]
)
def test_user_of_the_address_and_key_are_sent_in_two_headers(
    kind: Any, fake: Fake, user: str, basic: bytes
) -> None:
    service, url = fake
    for key in ("sesame", None):
        with kind(url.replace("//", f"//{user}@"), api_key=key) as client:
            assert client.predict(PHOTO).request_id == "1"
        headers = service.requests.pop()[2]
        assert headers["Authorization"] == f"Basic {base64.b64encode(basic).decode()}"
        assert headers.get("X-API-Key") == key


@pytest.mark.parametrize("answer", [(302, {}), (200, {"Content-Encoding": "gzip"}), (200, {})])
def test_password_of_the_address_is_in_no_error_and_no_log(
    kind: Any, fake: Fake, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    service, url = fake
    service.answers = [answer, (200, {})]
    caplog.set_level(logging.DEBUG)
    shown = []
    for address in (url, "http://127.0.0.1:9"):
        with kind(address.replace("//", "//u:pass%20word@"), retries=0) as client:
            with pytest.raises(ClientError) as raised:
                client.info()
            shown += [*traceback.format_exception(raised.value), repr(client)]
            cause = raised.value.__cause__
            if isinstance(cause, httpx.RequestError):
                shown.append(str(cause.request.url))
    for invalid in ("http://u:pass word@localhost:0", "http://u:pass%20word@:8", "u:pass word@h"):
        with pytest.raises(ValueError, match="use one like http://localhost:8000") as refused:
            kind(invalid)
        shown += traceback.format_exception(refused.value)
    text = "".join(shown)
    assert "http://127.0.0.1:9" in text
    # Lines of this test, which tracebacks quote, have it in quotes.
    assert not [line for line in text.splitlines() if "pass" in line and '"' not in line]
    assert "pass" not in caplog.text
