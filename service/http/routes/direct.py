"""Direct routes: endpoints that read their requests and write their answers themselves.

In: a request that FastAPI's router has found a route for. Out: the endpoint's answer. FastAPI
documents such a route and does nothing else for it: resolving dependencies and wrapping the answer
would cost more than everything else that a prediction does in Python. Next: `predict.py`.
"""

from __future__ import annotations

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from service.http.keys import demand_predict_key
from service.http.rates import limit_rate


class DirectRoute(APIRoute):
    """Asks for a key, counts the caller, and hands the request to the endpoint.

    Dependencies of the route are for its documentation only.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)  # 405
            return
        request = Request(scope, receive, send)
        await demand_predict_key(request)
        await limit_rate(request)
        response = await self.endpoint(request)
        await response(scope, receive, send)
