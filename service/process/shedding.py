"""Load shedding: requests are refused at their connection.

Predictions are refused while the queue is full, and all requests but those for health on a surplus
connection. `routes/direct.py` refuses those that need a layer of the app, as early.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from service.errors import BusyError, QueueFull, TooManyConnections
from service.http.responses.problems import Renderers, find_prefix
from service.http.security.browsers import COMMON_HEADERS
from service.http.security.proxies import read_root_path
from service.http.telemetry.access import PROBES, RAW_REQUEST_ID, choose_request_id
from service.http.telemetry.metrics import Metrics
from service.logs import EventCounter
from service.pipeline.served import ServedPipeline
from service.process.protocol.connection import SURPLUS, Refusal

logger = logging.getLogger(__name__)


class Shedder:
    """Refuses POST requests to `paths` while the queue is full; counts and logs all refusals.

    Paths below the root path of the settings count too. If a proxy names a prefix in a header and
    leaves it in the path, the app refuses the request.
    """

    def __init__(
        self, served: ServedPipeline, metrics: Metrics, paths: Iterable[str], renderers: Renderers
    ) -> None:
        self._answers: dict[type[BusyError], dict[str, Any]] = {
            error: {prefix: render(error(), "%b") for prefix, render in renderers.items()}
            for error in (QueueFull, TooManyConnections)
        }
        self._served = served
        self._metrics = metrics
        self._root_path = read_root_path(served.settings.root_path)
        prefixes = ("", self._root_path)
        self._paths = {prefix + path: path for path in paths for prefix in prefixes}
        self._health = {prefix + path for path in PROBES for prefix in prefixes}
        self._refused = EventCounter[tuple[str, type[BusyError]]](_log)

    def refuse(self, scope: Mapping[str, Any]) -> Refusal | None:
        """Returns the refusal for a request, by its ASGI scope, or None to pass it on."""
        if SURPLUS in scope and scope["path"] not in self._health:
            return self._refuse(TooManyConnections, scope, self._paths.get(scope["path"], ""), 1)
        path = self._paths.get(scope["path"])
        if path is None or scope["method"] != "POST" or not self._served.ready:
            return None
        queue = self._served.pipeline.queue
        # A page's request may need the headers of CORS, which a layer of the app adds.
        if not queue.is_full or any(name == b"origin" for name, _ in scope["headers"]):
            return None
        return self._refuse(QueueFull, scope, path, math.ceil(queue.estimate_wait()))

    def _refuse(
        self, error: type[BusyError], scope: Mapping[str, Any], path: str, retry_after: int
    ) -> Refusal:
        started = time.perf_counter()
        request_id = choose_request_id(scope).encode()
        answers = self._answers[error]
        answer = answers[find_prefix(scope["path"].removeprefix(self._root_path), answers)]
        headers = [(b"content-type", answer.media_type.encode()), *COMMON_HEADERS]
        headers += [(b"retry-after", b"%d" % retry_after), (RAW_REQUEST_ID, request_id)]
        refusal = Refusal(error.status, headers, answer.body.replace(b"%b", request_id))
        seconds = time.perf_counter() - started
        self._metrics.count_request(scope["method"], path, error.status, seconds, error.code)
        self._refused.count((path, error))
        return refusal


def _log(refused: Counter[tuple[str, type[BusyError]]]) -> None:
    for (path, error), count in refused.items():
        fields = {"path": path, "status": error.status, "problem": error.code, "count": count}
        logger.warning("requests refused", extra=fields)
