"""Tests of `/info`; health and metrics have theirs in `test_app.py` and `telemetry`."""

from fastapi.testclient import TestClient

from service.bundle.reader import Bundle


def test_info_is_the_model_card(client: TestClient, tiny_bundle: Bundle) -> None:
    info = client.get("/info").json()
    assert [label["name"] for label in info["labels"]] == [la.name for la in tiny_bundle.labels]
    assert info["labels"][0]["threshold"] == 0.4
    assert info["license"] == "Apache-2.0"
    assert info["input"]["height"] == 16
    assert (info["background"], info["open_head"]) == (None, None)
    unmeasured = {"threshold": 0.5, "calibration": None}
    assert info["head"] == {"kind": "gap", "activation": "sigmoid", "maps": False} | unmeasured
    assert info["runtime"] == {
        "device": "cpu",
        "provider": "CPUExecutionProvider",
        "precision": "fp32",
    }
