"""Pages of other sites in a visitor's browser: they change and cost nothing without permission."""

import socket
from collections.abc import Iterator
from itertools import product
from typing import Any

import httpx2 as httpx
import pytest

from service.bundle.reader import Bundle
from tests.e2e.server_process import ServerProcess
from tests.support.serving import assert_problem, assert_still_serving, send_image, serve_app

PETS = {"name": "pets", "labels": ["cat"]}
OTHER, PERMITTED = "https://other.example", "https://app.example.org"
REBOUND = {"Host": "rebind.example:8000", "Origin": "http://rebind.example:8000"}
ROUTES = [
    *(("POST", "/labels"), ("PUT", "/labels/pets"), ("PATCH", "/labels/pets")),
    *(("DELETE", "/labels/pets"), ("POST", "/labels/pets/calibrate?label=cat")),
    *(("POST", "/predict"), ("POST", "/predict/batch"), ("POST", "/v2/models/tiny-open/infer")),
]
READ_ROUTES = [
    *(("GET", "/"), ("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/metrics")),
    *(("GET", "/info"), ("GET", "/labels"), ("GET", "/labels/pets"), ("GET", "/v2")),
    *(("GET", "/v2/models/tiny-open"), ("GET", "/v2/models/tiny-open/versions/1/ready")),
]
TAG = {"label_set": "trained", "top_k": 1}


def assert_refused(response: httpx.Response, code: str) -> str:
    """Checks that a route refuses the page, and returns its sentence."""
    if response.request.url.path.startswith("/v2"):
        assert response.status_code == 403
        text: str = response.json()["error"]
        return text
    detail: str = assert_problem(response, 403, code)["detail"]
    return detail


def test_rebound_name_is_refused_on_every_route_but_health(client: httpx.Client) -> None:
    for method, path in (*ROUTES, *READ_ROUTES):
        refused = client.request(method, path, headers=REBOUND, json=PETS)
        says = assert_refused(refused, "host_not_allowed")
        assert "'rebind.example' is right, add it to ML_DECODER_ALLOWED_HOSTS" in says
    assert client.get("/labels/pets").status_code == 404
    assert client.get("/readyz", headers=REBOUND).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        *({"Origin": origin} for origin in (OTHER, "null", "http://127.0.0.1:1", "http://")),
        *({"Sec-Fetch-Site": site} for site in ("cross-site", "same-site", "new-word")),
        {"Origin": PERMITTED, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    ],
)
def test_page_of_another_site_changes_and_costs_nothing(
    client: httpx.Client, headers: dict[str, str]
) -> None:
    for method, path in ROUTES:
        refused = client.request(method, path, headers=headers, json=PETS)
        assert "ML_DECODER_CORS_ORIGINS" in assert_refused(refused, "cross_site")
    assert_problem(send_image(client, headers=headers), 403, "cross_site")
    for path in ("/", "/docs", "/labels"):  # a link may lead to them
        assert client.get(path, headers=headers).status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST.", "a.localhost", "[::1]",
                                  "192.168.1.20", "[fd00::20]"])  # fmt: skip
def test_own_page_is_served_under_loopback_and_addresses(client: httpx.Client, host: str) -> None:
    for port, site in product(("", ":8000", ":80"), (None, "same-origin", "none")):
        place = f"{host}{port}"
        headers = {"Host": place, "Origin": f"http://{place.lower()}"}
        if site is not None:  # a proxy may change `Host`
            headers |= {"Origin": "https://tags.example.org", "Sec-Fetch-Site": site}
        assert_problem(client.delete("/labels/no-set", headers=headers), 404, "label_set_not_found")


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1.rebind.example", "localhost.rebind.example", "xlocalhost", "0x7f.1", "2130706433",
     "a:80:80", "", "localhost@rebind.example", "127.0.0.1, rebind.example"],
)  # fmt: skip
def test_name_that_looks_like_loopback_is_refused(client: httpx.Client, host: str) -> None:
    headers = {"Host": host, "Origin": f"http://{host}"}
    assert_problem(client.delete("/labels/pets", headers=headers), 403, "host_not_allowed")


@pytest.mark.parametrize(
    ("headers", "is_browser"),
    [
        ({}, False),
        ({"Sec-Fetch-Mode": "cors", "Referer": "http://rebind.example/"}, False),  # Node.js
        *(({f"Sec-Fetch-{name}": "x"}, True) for name in ("Mode", "Dest", "Site", "User")),
        ({"Sec-Fetch-Mode": "cors", "Sec-Fetch-Site": "same-origin"}, True),
    ],
)
def test_name_counts_for_browsers_only(
    client: httpx.Client, headers: dict[str, str], is_browser: bool
) -> None:
    response = client.delete("/labels/pets", headers=headers | {"Host": "ml-decoder:8000"})
    code = "host_not_allowed" if is_browser else "label_set_not_found"
    assert_problem(response, 403 if is_browser else 404, code)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("HTTP/1.1\r\nHost: localhost\r\nHost: rebind.example\r\nOrigin: http://localhost", 403),
        ("HTTP/1.1\r\nHost: rebind.example\r\nHost: localhost\r\nOrigin: http://localhost", 403),
        ("HTTP/1.1\r\nHost: rebind.example\r\nX-Forwarded-Host: localhost\r\nOrigin: null", 403),
        ("HTTP/1.1\r\nHost: localhost\r\norigin: http://localhost\r\nOrigin: null", 403),
        ("HTTP/1.0\r\nOrigin: http://rebind.example", 403),
        ("HTTP/1.0\r\nUser-Agent: old", 404),
        ("HTTP/1.1\r\nHost: rebind.example", 404),
    ],
)
def test_odd_heads(client: httpx.Client, server: ServerProcess, head: str, status: int) -> None:
    with socket.create_connection(server.find_address()) as connection:
        connection.sendall(f"DELETE /labels/no-set {head}\r\nConnection: close\r\n\r\n".encode())
        with connection.makefile("rb") as answer:
            assert int(answer.readline().split()[1]) == status
    assert_still_serving(client)


@pytest.fixture(scope="module")
def permitting(open_bundle: Bundle) -> Iterator[httpx.Client]:
    named = {"allowed_hosts": "Tags.example.org, *.lan,", "cors_origins": PERMITTED}
    with serve_app(open_bundle.path, label_store="memory", **named) as client:
        yield client


@pytest.mark.parametrize("host", ["tags.example.org", "TAGS.example.org.:8443", "nas.lan:8000"])
def test_allowed_name_is_served_and_its_refusals_name_the_origin(
    permitting: httpx.Client, host: str
) -> None:
    own = {"Host": host, "Origin": f"http://{host.lower()}"}
    assert permitting.post("/labels", json=PETS, headers=own).status_code == 201
    assert permitting.delete("/labels/pets", headers=own).status_code == 204
    for origin in (OTHER, "null"):
        refused = permitting.post("/labels", json=PETS, headers=own | {"Origin": origin})
        assert f"from '{origin}'" in assert_problem(refused, 403, "cross_site")["detail"]
    for other in ("example.org", "lan", "tags.example.org.evil.example"):
        named = {"Host": other, "Origin": f"http://{other}"}
        refused = permitting.post("/labels", json=PETS, headers=named)
        assert_problem(refused, 403, "host_not_allowed")


def test_permitted_origin_is_answered_and_reads_why_a_host_is_refused(
    permitting: httpx.Client,
) -> None:
    page: dict[str, Any] = {"Origin": PERMITTED, "Sec-Fetch-Site": "cross-site"}
    answer = send_image(permitting, params=TAG, headers=page)
    assert answer.status_code == 200
    refused = permitting.post("/labels", json=PETS, headers=page | {"Host": "rebind.example"})
    assert_problem(refused, 403, "host_not_allowed")
    for response in (answer, refused):
        assert response.headers["access-control-allow-origin"] == PERMITTED
