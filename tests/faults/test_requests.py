"""Odd paths, methods, headers, queries and texts get a problem or change nothing."""

import base64
import binascii
from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import pytest

from tests.support.serving import PHOTO, PROBLEM_JSON, assert_problem, labels_of, to_base64

_FORM = {"Content-Type": "multipart/form-data; boundary=frontier"}


def make_form(encoding: str, encode: Callable[[bytes], bytes], **fields: bytes) -> bytes:
    parts = [
        f'--frontier\r\nContent-Disposition: form-data; name="{name}"\r\n'
        f"content-transfer-encoding: {encoding}\r\n\r\n".encode()
        + encode(content)
        for name, content in fields.items()
    ]
    return b"\r\n".join([*parts, b"--frontier--\r\n"])


@pytest.fixture
def odd(client: httpx.Client) -> None:
    """Registers the label set `odd`."""
    client.put("/labels/odd", json={"labels": ["yak"]}).raise_for_status()


def to_quoted(content: bytes) -> bytes:
    return binascii.b2a_qp(content, istext=False)


@pytest.mark.parametrize("route", ["/info", "/labels", "/livez", "/predict"])
def test_odd_headers_change_nothing(client: httpx.Client, route: str) -> None:
    odd: dict[str, Any] = {
        "X-Request-ID": "a b\tc",
        "Host": "evil.example",
        "X-Forwarded-For": "127.0.0.1",
        "Accept": "application/xml",
        "Range": "bytes=0-1",
    }
    if route == "/predict":
        response = client.post(route, json={"image": to_base64(PHOTO)}, headers=odd)
        assert labels_of(response) != []
    else:
        response = client.get(route, headers=odd)
        assert response.status_code == 200
    assert response.headers["content-type"] != PROBLEM_JSON
    assert response.headers["x-request-id"] != odd["X-Request-ID"]
    assert "evil" not in response.text


@pytest.mark.parametrize(
    ("encoding", "encode"), [("base64", base64.b64encode), ("quoted-printable", to_quoted)]
)
def test_transfer_encoding_of_a_bare_body_and_of_a_text_is_decoded(
    client: httpx.Client, encoding: str, encode: Callable[[bytes], bytes]
) -> None:
    headers = {"Content-Type": "image/png", "Content-Transfer-Encoding": encoding}
    encoded = client.post("/predict?top_k=1", content=encode(PHOTO), headers=headers)
    plain = client.post("/predict?top_k=1", json={"image": to_base64(PHOTO)})
    assert labels_of(encoded) == labels_of(plain)
    form = make_form(encoding, encode, image=PHOTO, candidate_labels="café=1".encode())
    ((name, _),) = labels_of(client.post("/predict?top_k=1", content=form, headers=_FORM))
    assert name == "café=1"


@pytest.mark.usefixtures("odd")
@pytest.mark.parametrize(
    ("method", "path", "close"),
    [
        ("GET", "/labels?label_st=a", ""),
        ("POST", "/labels?name=a", ""),
        ("GET", "/labels/everyday?version=1", ""),
        ("PUT", "/labels/odd?if_version=1", ""),
        ("PATCH", "/labels/odd?label=a", ""),
        ("DELETE", "/labels/odd?nmae=a", ""),
        ("POST", "/labels/odd/calibrate?label=a&precision_taget=1", "'precision_target'"),
        ("GET", "/info?verbose", ""),
    ],
)
def test_unknown_name_in_the_query_is_refused(
    client: httpx.Client, method: str, path: str, close: str
) -> None:
    refused = client.request(method, path)
    (value,) = assert_problem(refused, 422, "invalid_parameters")["errors"]
    assert value["name"] == path.partition("?")[2].split("&")[-1].partition("=")[0]
    assert "unknown" in value["reason"]
    assert close in value["reason"]
    assert client.get("/labels/odd").status_code == 200
