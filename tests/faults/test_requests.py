"""Odd paths, methods and headers get a problem or change nothing."""

from typing import Any

import httpx2 as httpx
import pytest

from tests.support.serving import PHOTO, PROBLEM_JSON, labels_of, to_base64


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
