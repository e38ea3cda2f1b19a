"""Dependencies: what routes take from the app and from the request.

In: a request. Out: the `PipelineHost` of the app, the id of the request. FastAPI fills
parameters annotated with `Host` or `RequestId`.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from service.http.hosting import PipelineHost


async def get_host(request: Request) -> PipelineHost:
    """Returns the host that `create_app` put into the app's state."""
    host: PipelineHost = request.app.state.host
    return host


async def get_request_id(request: Request) -> str:
    """Returns the id that `access.py` gave the request."""
    request_id: str = request.state.request_id
    return request_id


Host = Annotated[PipelineHost, Depends(get_host)]
RequestId = Annotated[str, Depends(get_request_id)]
