"""The log of a real process."""

import json

from service.bundle.reader import Bundle
from tests.e2e.server_process import ServerProcess, serve_command
from tests.support.photos import make_photo


def test_every_line_is_a_json_object_and_errors_carry_the_request_id(tiny_bundle: Bundle) -> None:
    command = serve_command(tiny_bundle)
    with ServerProcess(*command, ML_DECODER_LOG_FORMAT="json") as server:
        server.wait_for_line(r'"message": "ready"')
        listening = json.loads(server.wait_for_line(r'.*"message": "listening".*\n').group())
        with server.connect(listening["address"], listening["port"]) as client:
            headers = {"X-Request-Id": "find-me"}
            answer = client.post("/predict", files={"image": b"junk"}, headers=headers)
            assert answer.headers["x-request-id"] == "find-me"
            assert client.post("/predict", files={"image": make_photo()}).status_code == 200
        line = json.loads(server.wait_for_line(r'.*"request_id": "find-me".*\n').group())
        assert server.stop() == 0
        lines = [json.loads(line) for line in server.stderr.splitlines()]
    assert (line["method"], line["path"], line["status"]) == ("POST", "/predict", 400)
    assert line["problem"] == "invalid_image"
    assert line["duration_ms"] > 0
    assert [entry["message"] for entry in lines if entry["logger"] == "service.process.server"]
    assert all({"time", "level", "logger", "message"} <= entry.keys() for entry in lines)
