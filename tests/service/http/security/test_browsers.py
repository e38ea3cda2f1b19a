"""Headers for browsers: our pages are closed to other sites, which need CORS to call the API."""

import pytest
from fastapi.testclient import TestClient

from service.bundle.reader import Bundle
from service.errors import HostNotAllowed, StartError
from service.http.open_inference.request import HEADER_LENGTH
from service.http.security.browsers import Sites, read_origins
from service.settings import Settings
from tests.support.serving import send_image, serve_app

ORIGIN = "https://app.example"


def test_pages_carry_security_headers_and_answers_nosniff(client: TestClient) -> None:
    page = client.get("/docs")
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert page.headers["referrer-policy"] == "no-referrer"
    for response in (page, client.get("/info"), send_image(client), client.get("/nowhere")):
        assert response.headers["x-content-type-options"] == "nosniff"
    assert "content-security-policy" not in client.get("/info").headers


def test_other_origins_are_not_allowed_by_default(client: TestClient) -> None:
    preflight = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    assert client.options("/predict", headers=preflight).status_code == 405
    answer = client.get("/info", headers={"Origin": ORIGIN})
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_only_named_origins_are_allowed(tiny_bundle: Bundle) -> None:
    with serve_app(tiny_bundle.path, cors_origins=f"{ORIGIN}, https://b.example") as client:
        for origin, allowed in ((ORIGIN, ORIGIN), ("https://evil.example", None)):
            asked = {
                "Origin": origin,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "x-api-key",
            }
            preflight = client.options("/predict", headers=asked)
            assert preflight.headers.get("access-control-allow-origin") == allowed
            assert preflight.status_code == (200 if allowed else 400)
            answer = send_image(client, headers={"Origin": origin})
            assert answer.headers.get("access-control-allow-origin") == allowed
            refused = send_image(client, b"", headers={"Origin": origin})
            assert refused.headers.get("access-control-allow-origin") == allowed


def test_named_origin_may_send_and_read_binary_tensors(tiny_bundle: Bundle) -> None:
    path = "/v2/models/tiny/infer"
    with serve_app(tiny_bundle.path, cors_origins=ORIGIN) as client:
        asked = {
            "Origin": ORIGIN,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": f"content-type,{HEADER_LENGTH.lower()}",
        }
        assert client.options(path, headers=asked).status_code == 200
        answer = client.post(path, headers={"Origin": ORIGIN})
        assert HEADER_LENGTH in answer.headers["access-control-expose-headers"].split(", ")
        assert send_image(client).status_code == 200


@pytest.mark.parametrize("text", ["app.example", "https://", "ftp://a", "https://a/path", "null"])
def test_invalid_origin_stops_the_start(text: str) -> None:
    with pytest.raises(StartError, match="cors_origins"):
        read_origins(text)


def test_cors_is_off_without_origins() -> None:
    assert read_origins(None) is None
    assert read_origins(" , ") is None


def test_name_that_the_service_listens_on_needs_no_permission() -> None:
    headers = [(b"host", b"nas.lan:8000"), (b"origin", b"http://nas.lan:8000")]
    scope = {"type": "http", "method": "POST", "headers": headers}
    Sites(Settings(host="NAS.lan")).check(scope)
    with pytest.raises(HostNotAllowed):
        Sites(Settings(host="0.0.0.0")).check(scope)
