"""Load shedding: predictions are refused at their connection while the queue is full.

`routes/direct.py` refuses requests that need a layer of the app (CORS, traces), or that another
ASGI server receives, also before their bodies are read.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from service.errors import QueueFull
from service.http.host import PipelineHost
from service.http.responses.problems import PROBLEM_JSON, describe_type
from service.http.security.browsers import COMMON_HEADERS
from service.http.security.proxies import read_root_path
from service.http.telemetry.access import RAW_REQUEST_ID, choose_request_id, read_request_id
from service.http.telemetry.metrics import Metrics
from service.http.transport.protocol import Refusal

_BODY = describe_type(QueueFull, "%b").model_dump_json(exclude_none=True).encode()
_HEADERS = ((b"content-type", PROBLEM_JSON.encode()), *COMMON_HEADERS)
# A line for each refusal would cost as much as the refusal.
_LOG_SECONDS = 1

logger = logging.getLogger(__name__)


class Shedder:
    """Refuses POST requests to `paths` while the queue is full; counts and logs the refusals.

    Paths below the root path of the settings count too. If a proxy names a prefix in a header and
    leaves it in the path, the app refuses the request.
    """

    def __init__(self, host: PipelineHost, metrics: Metrics, paths: Iterable[str]) -> None:
        self._host = host
        self._metrics = metrics
        root_path = read_root_path(host.settings.root_path)
        self._paths = {prefix + path: path for path in paths for prefix in ("", root_path)}
        self._unlogged = Counter[str]()

    def refuse(self, scope: Mapping[str, Any]) -> Refusal | None:
        """Returns the refusal for a request, by its ASGI scope, or None to pass it on."""
        path = self._paths.get(scope["path"])
        if path is None or scope["method"] != "POST" or not self._host.ready:
            return None
        started = time.perf_counter()
        queue = self._host.pipeline.queue
        # A page's request may need the headers of CORS, which a layer of the app adds.
        if not queue.is_full or any(name == b"origin" for name, _ in scope["headers"]):
            return None
        request_id = choose_request_id(read_request_id(scope)).encode()
        retry_after = b"%d" % math.ceil(queue.estimate_wait())
        headers = [*_HEADERS, (b"retry-after", retry_after), (RAW_REQUEST_ID, request_id)]
        refusal = Refusal(QueueFull.status, headers, _BODY % request_id)
        seconds = time.perf_counter() - started
        self._metrics.count_request("POST", path, QueueFull.status, seconds, QueueFull.code)
        if not self._unlogged:
            asyncio.get_running_loop().call_later(_LOG_SECONDS, self._log)
        self._unlogged[path] += 1
        return refusal

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
