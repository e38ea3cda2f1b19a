"""What the server logs when it starts to listen."""

from typing import Any

import pytest

from service.http.server import log_listening
from service.settings import Settings

PREDICT, ADMIN = {"predict_keys": "@/predict"}, {"admin_keys": "@/admin"}
OPEN = "no keys are set: any client may predict and change label sets"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.20", "nas.lan"])
@pytest.mark.parametrize(
    ("keys", "warning"),
    [
        ({}, [OPEN]),
        (ADMIN, ["no predict_keys are set: any client may predict"]),
        (PREDICT, []),
        (PREDICT | ADMIN, []),
    ],
)
def test_public_address_without_keys_to_predict_warns(
    caplog: pytest.LogCaptureFixture, host: str, keys: dict[str, Any], warning: list[str]
) -> None:
    log_listening(Settings(host=host, **keys), [])
    assert caplog.messages == warning


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_local_address_does_not_warn(caplog: pytest.LogCaptureFixture, host: str) -> None:
    log_listening(Settings(host=host), [])
    assert caplog.messages == []
