"""Shedding: predictions that the queue has no place for are refused at their connection.

In: the ASGI scope of a request, as soon as its headers are there. Out: a 429, or None where the
request goes on to the app. No task, no layer of the app and no body is begun for what is refused:
under a flood of requests the predictions in hand are left with what the refusals do not take.
Next: `connections.py`, which sends the answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from service.errors import QueueFull
from service.http.host import PipelineHost
from service.http.responses.handlers import PROBLEM_JSON
from service.http.responses.problems import describe_type, list_headers
from service.http.security.browsers import EVERYWHERE
from service.http.telemetry.access import RAW_REQUEST_ID, choose_request_id, read_request_id
from service.http.telemetry.metrics import Metrics
from service.http.transport.protocol import Refusal

_BODY = describe_type(QueueFull, "%b").model_dump_json(exclude_none=True).encode()
_HEADERS = ((b"content-type", PROBLEM_JSON.encode()), *EVERYWHERE)
# A line for each refusal would cost as much as the refusal.
_LOG_SECONDS = 1

logger = logging.getLogger(__name__)


class Shedder:
    """Refuses predictions while the queue is full; counts them, and logs how many they were."""

    def __init__(self, host: PipelineHost, metrics: Metrics, paths: Iterable[str]) -> None:
        """Refuses nothing yet.

        Args:
            host: whose pipeline has the queue.
            metrics: where refusals are counted.
            paths: of the predictions, all of them POST.
        """
        self._host = host
        self._metrics = metrics
        self._paths = frozenset(paths)
        self._unlogged = Counter[str]()

    def refuse(self, scope: Mapping[str, Any]) -> Refusal | None:
        """Returns the answer to a prediction that there is no place for; None for all else."""
        path = scope["path"]
        if path not in self._paths or scope["method"] != "POST" or not self._host.ready:
            return None
        started = time.perf_counter()
        queue = self._host.pipeline.queue
        if not queue.is_full or _comes_from_page(scope):
            return None
        request_id = choose_request_id(read_request_id(scope))
        refusal = _describe(queue.make_refusal(), request_id.encode())
        seconds = time.perf_counter() - started
        self._metrics.count_request("POST", path, QueueFull.status, seconds, QueueFull.code)
        self._note(path)
        return refusal

    def _note(self, path: str) -> None:
        if not self._unlogged:
            asyncio.get_running_loop().call_later(_LOG_SECONDS, self._log)
        self._unlogged[path] += 1

    def _log(self) -> None:
        for path, count in self._unlogged.items():
            fields = {
                "path": path,
                "status": QueueFull.status,
                "problem": QueueFull.code,
                "count": count,
            }
            logger.warning("requests refused", extra=fields)
        self._unlogged.clear()


def _comes_from_page(scope: Mapping[str, Any]) -> bool:
    """Whether the answer may need the headers of CORS, which a layer of the app adds."""
    return any(name == b"origin" for name, _ in scope["headers"])


def _describe(full: QueueFull, request_id: bytes) -> Refusal:
    headers = [
        *_HEADERS,
        (b"retry-after", list_headers(full)["Retry-After"].encode()),
        (RAW_REQUEST_ID, request_id),
    ]
    return Refusal(QueueFull.status, headers, _BODY % request_id)
