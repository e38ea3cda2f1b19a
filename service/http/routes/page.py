"""The page at `/`, the API reference at `/docs` and the OpenAPI document.

Files come from this host only, Swagger UI's from the package `fastapi_offline`. URLs are relative.
Below a root path a `<base>` names it, because proxies show the page at `/tags` as well as `/tags/`.
"""

import html
from functools import lru_cache
from pathlib import Path

import fastapi_offline
from fastapi import APIRouter, HTTPException, Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from service.http.security.browsers import PAGE_POLICY
from service.http.security.keys import PUBLIC
from service.http.security.rates import LIMITED

PAGE_FOLDER = Path(__file__).parents[1] / "page"
SWAGGER_FOLDER = Path(fastapi_offline.__file__).parent / "static"

# Other files that appear in the folder, such as pictures that a tool writes, are not served.
_SAMPLES = ("README.md", "astronaut.jpg", "chelsea.jpg", "coffee.jpg", "rocket.jpg")
_SUFFIXES = frozenset({".css", ".html", ".js", ".svg"})
_PAGE_NAMES = {path.name for path in PAGE_FOLDER.iterdir() if path.suffix in _SUFFIXES}
_PAGE_NAMES |= {f"samples/{name}" for name in _SAMPLES}

_HEADERS = {
    "Accept-Ranges": "none",
    "Cache-Control": "no-cache",  # ask each time; an unchanged file is a 304
    "Content-Security-Policy": PAGE_POLICY,
    "Referrer-Policy": "no-referrer",
}

router = APIRouter(include_in_schema=False)


class PageFiles(StaticFiles):
    """The files of a folder, with headers that restrict the page to its own host."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Returns a whole file, 404 or 304."""
        response = await super().get_response(path, scope)
        response.headers.update(_HEADERS)
        if isinstance(response, FileResponse) and response.stat_result is not None:
            # A `FileResponse` keeps its file open until the client has read it. Slow clients took
            # two files each, and all files of the process before they were too many connections.
            content = _read_file(str(response.path), response.stat_result.st_mtime_ns)
            return Response(content, response.status_code, response.headers)
        return response


@lru_cache(64)
def _read_file(path: str, _changed: int) -> bytes:
    return Path(path).read_bytes()


_PAGE_FILES = PageFiles(directory=PAGE_FOLDER)
_SWAGGER_FILES = PageFiles(directory=SWAGGER_FOLDER)


@router.get("/", dependencies=[PUBLIC])
async def show_page(request: Request) -> Response:
    """Shows the page."""
    return await _show("index.html", request.scope)


@router.get("/docs", dependencies=[PUBLIC])
async def show_reference(request: Request) -> Response:
    """Shows Swagger UI on the app's own OpenAPI document."""
    return await _show("docs.html", request.scope)


@router.get("/openapi.json", dependencies=[PUBLIC, LIMITED])
async def send_document(request: Request) -> Response:
    """Sends the OpenAPI document; below a root path with the URL of the service."""
    root_path = request.scope["root_path"]
    servers = {"servers": [{"url": root_path}]} if root_path else {}
    return JSONResponse({**request.app.openapi(), **servers})


async def _show(page: str, scope: Scope) -> Response:
    if not scope["root_path"]:
        return await _PAGE_FILES.get_response(page, scope)
    base = f'<base href="{html.escape(scope["root_path"])}/">'
    content = _read_file(str(PAGE_FOLDER / page), 0).decode()
    return HTMLResponse(content.replace("<head>", f"<head>\n  {base}", 1), headers=_HEADERS)


# Files of both pages are sent under every host name, so that the page can show what is refused.
# Routes instead of mounts, which lose the app's root path and the methods of a path.
@router.get("/page/{path:path}")
async def send_page_file(request: Request, path: str) -> Response:
    """Sends a file of both pages."""
    if path not in _PAGE_NAMES:
        raise HTTPException(404)
    return await _PAGE_FILES.get_response(path, request.scope)


@router.get("/swagger-ui/{path:path}")
async def send_swagger_file(request: Request, path: str) -> Response:
    """Sends a file of Swagger UI."""
    return await _SWAGGER_FILES.get_response(path, request.scope)
