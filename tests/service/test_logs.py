"""A log record is one line, as text or as JSON, with its fields and the request's id."""

import asyncio
import json
import logging
import sys

import pytest

from service import logs
from service.logs import EventCounter, LogFormat, add_request_id, make_formatter, request_id_of


def make_record(sentence: str = "request", **fields: object) -> logging.LogRecord:
    record = logging.LogRecord("service.x", logging.INFO, "x.py", 1, sentence, None, None)
    record.__dict__.update(fields)
    return record


def test_text_line_ends_with_the_fields() -> None:
    record = make_record(status=200, path="/labels/{name}", duration_ms=1.5)
    line = make_formatter("text").format(record)
    assert line.endswith('INFO service.x request status=200 path="/labels/{name}" duration_ms=1.5')


def test_json_line_is_an_object_with_the_fields() -> None:
    record = make_record(status=200, path="/x")
    line = json.loads(make_formatter("json").format(record))
    assert line.pop("time")
    event = {"level": "INFO", "logger": "service.x", "message": "request"}
    assert line == {**event, "status": 200, "path": "/x"}


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("value", ["a\nb", "a\r\nb", "a\u2028b", 'a" level="x', "\x1b[31m"])
def test_value_with_line_ends_is_one_value_on_one_line(log_format: LogFormat, value: str) -> None:
    line = make_formatter(log_format).format(make_record(path=value))
    assert len(line.splitlines()) == 1
    assert json.dumps(value) in line


def test_message_with_control_characters_is_one_line_without_them() -> None:
    line = make_formatter("text").format(make_record("a\x1b[31m\n\x9b\u2028.jpg was not read"))
    assert line.endswith(r"service.x a\x1b[31m\n\x9b\u2028.jpg was not read")


def test_traceback_is_in_the_json_object() -> None:
    try:
        raise ZeroDivisionError("a bug")
    except ZeroDivisionError:
        record = make_record()
        record.exc_info = sys.exc_info()
    line = make_formatter("json").format(record)
    assert len(line.splitlines()) == 1
    assert "ZeroDivisionError: a bug" in json.loads(line)["exc_info"]


def test_events_are_counted_on_after_an_error_of_their_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOG_SECONDS", 0)
    logged = list[dict[str, int]]()

    def log(events: dict[str, int]) -> None:
        logged.append(dict(events))
        assert len(logged) > 1  # asyncio logs the failure

    async def count() -> None:
        counter = EventCounter[str](log)
        for _ in range(2):
            counter.count("a")
            await asyncio.sleep(0.01)

    asyncio.run(count())
    assert logged == [{"a": 1}, {"a": 1}]


def test_request_id_is_on_the_lines_of_its_request_only() -> None:
    token = request_id_of.set("abc")
    within = make_record()
    add_request_id(within)
    request_id_of.reset(token)
    outside = make_record()
    add_request_id(outside)
    assert make_formatter("text").format(within).endswith("request request_id=abc")
    assert "request_id" not in make_formatter("text").format(outside)
