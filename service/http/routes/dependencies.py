"""Dependencies: what routes take from the app.

In: a request. Out: the `PipelineHost` of its app. FastAPI fills parameters annotated with `Host`.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from service.http.host import PipelineHost


async def get_host(request: Request) -> PipelineHost:
    """Returns the host that `create_app` put into the app's state."""
    host: PipelineHost = request.app.state.host
    return host


Host = Annotated[PipelineHost, Depends(get_host)]
