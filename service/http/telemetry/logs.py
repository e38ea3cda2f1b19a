"""Logs: one line for each thing that happened, as text or as a JSON object.

In: log records; what belongs to an event is given as fields (`extra={"status": 200}`), not put
into its sentence. Out: lines on stderr. Every line that is written while a request is served
carries the request's id.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from contextvars import ContextVar
from typing import Literal

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

LogFormat = Literal["text", "json"]

request_id_of: ContextVar[str | None] = ContextVar("request_id_of", default=None)
"""Id of the request that is being served, in its task and in the tasks that it starts."""

_PLAIN_VALUE = re.compile(r"[A-Za-z0-9._:+-]+")
# uvicorn's copy of the message, with terminal colours.
_NOT_FIELDS = frozenset({*RESERVED_ATTRS, "color_message"})


class TextFormatter(logging.Formatter):
    """Writes `time level logger sentence field=value ...`; odd values are quoted."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Returns the line without its traceback."""
        line = super().formatMessage(record)
        fields = {k: v for k, v in record.__dict__.items() if k not in _NOT_FIELDS}
        return " ".join([line, *(f"{name}={_quote(value)}" for name, value in fields.items())])


class RequestIdFilter(logging.Filter):
    """Adds the id of the request that is being served, where there is one."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Lets every record pass."""
        request_id = request_id_of.get()
        if request_id is not None:
            record.request_id = request_id
        return True


def configure_logs(level: str, log_format: LogFormat = "text") -> None:
    """Sends log records of this severity and above to stderr, one line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(make_formatter(log_format))
    handler.addFilter(RequestIdFilter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if level != "debug":
        # uvicorn tells the story of its start and stop in ten lines; ours takes three.
        logging.getLogger("uvicorn").setLevel(logging.WARNING)


def make_formatter(log_format: LogFormat) -> logging.Formatter:
    """Returns what turns a record into a line."""
    if log_format == "text":
        return TextFormatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    return JsonFormatter(
        "%(levelname)s %(name)s %(message)s",
        rename_fields={"levelname": "level", "name": "logger"},
        timestamp="time",
        reserved_attrs=[*_NOT_FIELDS],
    )


def _quote(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    # What a client sent may hold line ends; as JSON it is one line and one value.
    return text if _PLAIN_VALUE.fullmatch(text) else json.dumps(text)
