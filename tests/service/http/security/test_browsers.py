"""Headers for browsers: our pages are closed to other sites, which need CORS to call the API."""

import pytest
from fastapi.testclient import TestClient

from service.bundle.reader import Bundle
from service.errors import HostNotAllowed, StartError
from service.http.dialects.open_inference.request import HEADER_LENGTH
from service.http.security.browsers import Sites, read_origins
from service.settings import Settings
from tests.support.serving import assert_problem, send_image, serve_app

ORIGIN = "https://app.example"
REBOUND = {"Host": "rebind.example:8000", "Origin": "http://rebind.example:8000"}
PETS = {"name": "pets", "labels": ["cat"]}
PREDICT, ADMIN = "predict-key-000001", "admin-key-00000001"


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
                "Access-Control-Request-Headers": f"x-api-key,{HEADER_LENGTH.lower()}",
                "Access-Control-Request-Private-Network": "true",
            }
            preflight = client.options("/predict", headers=asked)
            answer = send_image(client, headers={"Origin": origin})
            refused = send_image(client, b"", headers={"Origin": origin})
            assert preflight.status_code == (200 if allowed else 400)
            if allowed:
                assert preflight.headers["access-control-allow-private-network"] == "true"
            for response in (preflight, answer, refused):
                assert response.headers.get("access-control-allow-origin") == allowed
        answer = client.post("/v2/models/tiny/infer", headers={"Origin": ORIGIN})
        assert HEADER_LENGTH in answer.headers["access-control-expose-headers"].split(", ")


@pytest.mark.parametrize("text", ["app.example", "https://", "ftp://a", "https://a/path", "null"])
def test_invalid_origin_stops_the_start(text: str) -> None:
    with pytest.raises(StartError, match="cors_origins"):
        read_origins(text)


@pytest.mark.parametrize(
    "host", ["https://a.example", "a.example:8000", "a.*.example", "*example", "ä.lan"]
)
def test_invalid_host_stops_the_start(host: str) -> None:
    with pytest.raises(StartError, match="allowed_hosts: a host must be a name such as"):
        Sites(Settings(allowed_hosts=host))


def test_name_that_the_service_listens_on_needs_no_permission() -> None:
    headers = [(b"host", b"nas.lan:8000"), (b"origin", b"http://nas.lan:8000")]
    scope = {"type": "http", "method": "POST", "headers": headers}
    Sites(Settings(host="NAS.lan")).check(scope)
    with pytest.raises(HostNotAllowed):
        Sites(Settings(host="0.0.0.0")).check(scope)


def test_all_hosts_and_origins_can_be_permitted() -> None:
    sites = Sites(Settings(allowed_hosts="*", cors_origins="*"))
    for page in (REBOUND, {"Origin": "null", "Sec-Fetch-Site": "cross-site"}):
        headers = [(name.lower().encode(), value.encode()) for name, value in page.items()]
        sites.check({"type": "http", "method": "POST", "headers": headers})


@pytest.mark.parametrize("kinds", [("predict", "admin"), ("admin",)])
def test_routes_with_a_key_take_any_name(open_bundle: Bundle, kinds: tuple[str, ...]) -> None:
    keys = {f"{kind}_keys": {"predict": PREDICT, "admin": ADMIN}[kind] for kind in kinds}
    with serve_app(open_bundle.path, **keys) as client:
        admin = REBOUND | {"X-API-Key": ADMIN, "Sec-Fetch-Site": "cross-site"}
        assert client.post("/labels", json=PETS, headers=admin).status_code == 201
        predicted = send_image(client, headers=admin)
        if "predict" in kinds:
            assert predicted.status_code == 200
            assert client.get("/", headers=REBOUND).status_code == 200
        else:  # anyone may predict, so the key of another route does not count
            assert_problem(predicted, 403, "host_not_allowed")
        assert_problem(client.delete("/labels/pets", headers=REBOUND), 401, "unauthorized")
        headers = {"X-API-Key": PREDICT} if "predict" in kinds else {}
        assert send_image(client, headers=headers).status_code == 200
