"""A real Chromium on a real server; the tests are skipped if Chromium is missing."""

import io
import shutil
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2 as httpx
import pytest
from multipart import MultipartParser
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Page,
    Request,
    Route,
    expect,
    sync_playwright,
)

from service.bundle.reader import Bundle
from service.http.requests.uploads import MAX_TEXT_PARTS
from tests.e2e.server_process import ServerProcess, serve_command

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
TIMEOUT_MS = 60_000
NAMES = ".example"  # names with this end lead to this machine
MAP = [[0.0, 0.0, 0.1], [0.0, 0.1, 0.2], [0.0, 0.2, 0.8]]


@dataclass
class Visit:
    """An open page and what it has done so far.

    Attributes:
        maps: the map that the faked service returns for every open label; None for no maps.
        calibration: what the faked `/info` says of the scores of both heads.
        asked: parameters of the predictions that the page sent.
    """

    page: Page
    url: str
    maps: list[list[float]] | None = None
    calibration: dict[str, Any] | None = None
    hosts: set[str] = field(default_factory=set)
    asked: list[dict[str, list[str]]] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def open(self) -> Page:
        """Opens the page, chooses the sample of a cat and waits for its tags."""
        self.page.goto(self.url)
        self.page.get_by_role("button", name="Sample: cat").click()
        self.page.wait_for_selector("#results ol", state="attached")
        self.page.wait_for_selector("[aria-busy=false]")
        self.page.evaluate("document.getElementById('options').open = true")
        return self.page

    def note(self, request: Request) -> None:
        """Records the host and, for predictions, the parameters."""
        if not request.url.startswith(("blob:", "data:")):
            self.hosts.add(request.url.split("/")[2])
        # Without its end, the body of a request that the page aborted before Chromium reported it.
        body = request.post_data_buffer or b""
        if request.url.endswith("/predict") and body.rstrip().endswith(b"--"):
            self.asked.append(read_parameters(request, body))

    def note_message(self, message: ConsoleMessage) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)


def read_parameters(request: Request, body: bytes) -> dict[str, list[str]]:
    _, _, boundary = request.headers["content-type"].partition("boundary=")
    parameters: dict[str, list[str]] = defaultdict(list)
    for part in MultipartParser(io.BytesIO(body), boundary, part_limit=MAX_TEXT_PARTS):
        if part.filename is None:
            parameters[part.name].append(part.value)
    return parameters


@pytest.fixture(scope="session")
def address(open_bundle: Bundle) -> Iterator[str]:
    """The URL of a service with the tiny open bundle and an empty store."""
    command = serve_command(open_bundle, "--label-store", "memory")
    with ServerProcess(*command) as server, server.open_client() as client:
        yield str(client.base_url).rstrip("/")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Not session-scoped: Playwright runs an event loop in this thread while it is open.
    if CHROMIUM is None:
        pytest.skip("no chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        expect.set_options(timeout=TIMEOUT_MS)  # `expect` ignores the context's timeout
        # Chromium's sandbox does not start as root, as containers run tests.
        flags = ["--no-sandbox", f"--host-resolver-rules=MAP *{NAMES} 127.0.0.1"]
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=flags)


@pytest.fixture
def visit(browser: Browser, address: str, request: pytest.FixtureRequest) -> Iterator[Visit]:
    """A page that must log no error and load nothing from other hosts; its sets are deleted."""
    locale = getattr(request, "param", "en-US")
    with browser.new_context(viewport={"width": 1280, "height": 900}, locale=locale) as context:
        context.set_default_timeout(TIMEOUT_MS)
        visit = Visit(context.new_page(), address)
        page = visit.page
        page.on("request", visit.note)
        page.on("pageerror", lambda error: visit.complaints.append(str(error)))
        page.on("console", visit.note_message)
        page.route("**/info", lambda route: answer_info(route, visit))
        page.route("**/predict", lambda route: answer_map(route, visit))
        yield visit
    url = visit.url.rstrip("/")
    for labels in httpx.get(f"{url}/labels").json()["label_sets"]:
        if not labels["read_only"]:
            httpx.delete(f"{url}/labels/{labels['name']}").raise_for_status()
    assert visit.complaints == []
    assert visit.hosts == {url.split("/")[2]}


def answer_info(route: Route, visit: Visit) -> None:
    """Answers `/info` with the maps of open labels and the calibration of the visit."""
    response = route.fetch()
    info = response.json()
    for name in ("head", "open_head"):
        if head := info[name]:
            shows_maps = name == "open_head" and visit.maps is not None
            head |= {"maps": shows_maps, "calibration": visit.calibration}
    route.fulfill(response=response, json=info)


def answer_map(route: Route, visit: Visit) -> None:
    """Adds the maps of the visit if the request asks for maps."""
    body = route.request.post_data_buffer or b""
    asked, unasked = (b'name="explain"\r\n\r\n' + value for value in (b"true", b"false"))
    if asked not in body:
        route.fallback()
        return
    response = route.fetch(post_data=body.replace(asked, unasked))
    answer = response.json()
    for label in answer["labels"]:
        label["map"] = visit.maps
    route.fulfill(response=response, json=answer)
