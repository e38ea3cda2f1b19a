"""What the server logs when it starts to listen."""

from typing import Any

import pytest

from service.process.server import log_listening
from service.settings import Settings

PREDICT, ADMIN = {"predict_keys": "@/predict"}, {"admin_keys": "@/admin"}
OPEN = "no keys are set: any client may predict and change label sets"


@pytest.mark.parametrize(
    ("host", "keys", "warning"),
    [
        *((host, {}, [OPEN]) for host in ("0.0.0.0", "::", "192.168.1.20", "nas.lan")),
        ("::", ADMIN, ["no predict_keys are set: any client may predict"]),
        ("::", PREDICT, []),
        *((host, {}, []) for host in ("127.0.0.1", "::1", "localhost")),
    ],
)
def test_public_address_without_keys_to_predict_warns(
    caplog: pytest.LogCaptureFixture, host: str, keys: dict[str, Any], warning: list[str]
) -> None:
    log_listening(Settings(host=host, **keys), [])
    assert caplog.messages == warning
