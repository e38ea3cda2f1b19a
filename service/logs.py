"""Logs: one line on stderr an event, text or JSON; its data are fields (`extra={...}`)."""

import asyncio
import json
import logging
import re
import sys
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from typing import Generic, Literal, TypeVar

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

from service.errors import escape

LogFormat = Literal["text", "json"]
KeyT = TypeVar("KeyT")

request_id_of: ContextVar[str | None] = ContextVar("request_id_of", default=None)
"""Id of the current request, in its task and in the tasks that it starts."""

LOG_SECONDS = 1
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9._:+-]+")
# uvicorn's copy of the message, with terminal colours.
_NOT_FIELDS = frozenset({*RESERVED_ATTRS, "color_message"})


class TextFormatter(logging.Formatter):
    """Writes `time level logger message field=value ...`."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Returns the line without its traceback."""
        fields = {k: v for k, v in record.__dict__.items() if k not in _NOT_FIELDS}
        words = (f"{name}={_quote(value)}" for name, value in fields.items())
        return " ".join([escape(super().formatMessage(record)), *words])


def add_request_id(record: logging.LogRecord) -> bool:
    """Adds the id of the current request to a log record; a logging filter that drops none."""
    request_id = request_id_of.get()
    if request_id is not None:
        record.request_id = request_id
    return True


def configure_logs(level: str, log_format: LogFormat = "text") -> None:
    """Sends log records of this severity and above to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(make_formatter(log_format))
    handler.addFilter(add_request_id)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if level != "debug":
        # uvicorn logs ten lines at start and stop; the server's own three are enough.
        logging.getLogger("uvicorn").setLevel(logging.WARNING)


def name_worker(number: int) -> None:
    """Adds the number of this worker process to all its log lines."""

    def add_worker(record: logging.LogRecord) -> bool:
        record.worker = number
        return True

    for handler in logging.getLogger().handlers:
        handler.addFilter(add_worker)


def make_formatter(log_format: LogFormat) -> logging.Formatter:
    """Returns the formatter of `log_format`."""
    if log_format == "text":
        return TextFormatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    return JsonFormatter(
        "%(levelname)s %(name)s %(message)s",
        rename_fields={"levelname": "level", "name": "logger"},
        timestamp="time",
        reserved_attrs=[*_NOT_FIELDS],
    )


class EventCounter(Generic[KeyT]):
    """Counts frequent events, such as refusals, and logs them together once a second."""

    def __init__(self, log: Callable[[Counter[KeyT]], None]) -> None:
        self._log = log
        self._unlogged = Counter[KeyT]()

    def count(self, key: KeyT) -> None:
        """Counts one event."""
        if not self._unlogged:
            asyncio.get_running_loop().call_later(LOG_SECONDS, self._flush)
        self._unlogged[key] += 1

    def _flush(self) -> None:
        events, self._unlogged = self._unlogged, Counter()  # first: `count` relies on it
        self._log(events)


def _quote(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    # A client's value may contain line ends; as JSON it is one value on one line.
    return text if _PLAIN_VALUE.fullmatch(text) else json.dumps(text)
