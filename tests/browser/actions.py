"""What tests do on the page, and what they read from it."""

import csv
import io
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2 as httpx
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import FilePayload, Locator, Page, Route, expect

from tests.browser.conftest import Visit
from tests.e2e.server_process import ROOT
from tests.support.serving import labels_of

SAMPLES = ROOT / "service" / "http" / "page" / "samples"
FOUND = ".label:not(.below)"
CAT = SAMPLES / "chelsea.jpg"  # the sample that `Visit.open` chooses


def rows(page: Page, column: int = 0, part: str = "") -> dict[str, float]:
    """Labels of a column with their scores; `part` is `.own`, `.others`, `.maybe` or FOUND."""
    wait_for_answer(page)
    items = page.locator(".column").nth(column).locator(part if part == FOUND else f"{part} .label")
    # In one call: between two, the page may draw the rows again.
    texts = items.evaluate_all(
        "all => all.map(row => ['.name', '.score'].map(part => row.querySelector(part).innerText))"
    )
    return {name: float(score) for name, score in texts}


def wait_for_answer(page: Page) -> None:
    """Waits until the page has drawn the answer of what it asked last."""
    page.wait_for_selector("#result-side[aria-busy=false]", state="attached")


def choose_sample(page: Page, title: str) -> None:
    """Presses a sample and waits until its photo is shown, from when on the page asks for it."""
    page.get_by_role("button", name=f"Sample: {title}").click()
    expect(page.locator("#photo")).to_have_accessible_name(f"Sample: {title}")


def find_row(page: Page, label: str) -> Locator:
    """Returns the rows of a label that show its map when pressed, one a column."""
    return page.locator("button.label").filter(has=page.get_by_text(label, exact=True))


def ask(address: str, photo: Path, **parameters: Any) -> dict[str, float]:
    """The labels of a direct request, rounded as on the page."""
    files = {"image": photo.read_bytes()}
    response = httpx.post(f"{address}/predict", files=files, params=parameters, timeout=60)
    return {label: round(score, 3) for label, score in labels_of(response)}


def register(visit: Visit, name: str, *labels: Any, **fields: Any) -> None:
    """Registers or replaces a label set."""
    body = {"labels": labels, **fields}
    response = httpx.put(f"{visit.url}/labels/{name}", json=body, timeout=60)
    assert response.is_success, response.text


def read_labels(visit: Visit, path: str = "") -> Any:
    """Returns the answer of `/labels`, or of a path below it."""
    return httpx.get(f"{visit.url}/labels{path}", timeout=60).json()


def show_best(page: Page, top_k: int = 10) -> None:
    page.check("[value=best]")
    page.fill("#top-k", str(top_k))


def show_from(page: Page, threshold: float) -> None:
    page.check("[value=number]")
    page.get_by_label("Threshold for every label").fill(str(threshold))


def expect_sets(page: Page, *names: str) -> None:
    """Waits until the result has the labels of these sets."""
    expect(page.locator("#options-summary")).to_contain_text(", ".join(names) + ";")
    wait_for_answer(page)


def type_labels(page: Page, labels: str) -> None:
    """Types labels of the user's own and waits for their scores."""
    page.get_by_label("Your own words").fill(labels)
    last = labels.split(",")[-1].strip()
    expect(page.locator(".own .name").get_by_text(last, exact=True)).to_be_visible()
    wait_for_answer(page)


def open_tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name).click()


def keep_as(page: Page, name: str) -> None:
    """Saves the words of Try as a set, on the tab Labels."""
    page.get_by_role("button", name="Save as a label set").click()
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("button", name="Save set").click()


def find_box(page: Page, name: str) -> Locator:
    """Returns the box of a label set."""
    return page.get_by_role("checkbox", name=name)


def make_payload(name: str, content: bytes) -> FilePayload:
    return {"name": name, "mimeType": "image/png", "buffer": content}


def choose(page: Page, *photos: Any) -> None:
    """Chooses files, or payloads of `make_payload`."""
    page.get_by_label("Choose photos").set_input_files(photos)


def download(page: Page, kind: str) -> tuple[str, str]:
    """Returns the name and the content of a file; CSV has a byte order mark."""
    with page.expect_download() as event:
        page.get_by_role("button", name=f"Download {kind}").click()
    content = event.value.path().read_bytes()
    assert content.startswith(b"\xef\xbb\xbf") == (kind == "CSV")
    return event.value.suggested_filename, content.decode("utf-8-sig")


def download_rows(page: Page) -> list[dict[str, str]]:
    """Returns the rows of the CSV file."""
    name, content = download(page, "CSV")
    assert name == "labels.csv"
    return list(csv.DictReader(io.StringIO(content, newline="")))


def settle(page: Page, visit: Visit, asked: int) -> None:
    """Waits until the page has this many answers."""
    while len(visit.asked) < asked:
        page.wait_for_timeout(20)
    wait_for_answer(page)


def hold(page: Page, pattern: str) -> Callable[[], Route]:
    """Holds the requests of a pattern; the result waits for the next one and returns it."""
    held: list[Route] = []
    page.route(pattern, lambda route: held.append(route))

    def take() -> Route:
        while not held:  # the handler may run after the event of the request
            page.wait_for_timeout(10)
        return held.pop()

    return take


def answer(page: Page, pattern: str, status: int, title: str, **more: Any) -> None:
    """Answers the next request of a pattern, or `times`, with a problem.

    `photo` is the name of a file that these requests must have.
    """
    times, photo = more.pop("times", 1), more.pop("photo", "").encode()
    headers = {"Retry-After": str(more.pop("retry_after"))} if "retry_after" in more else {}

    def handle(route: Route) -> None:
        nonlocal times
        if times and photo in (route.request.post_data_buffer or b""):
            times -= 1
            problem = {"status": status, "title": title, **more}
            route.fulfill(status=status, headers=headers, json=problem)
        else:
            route.fallback()

    page.route(pattern, handle)


def demand_key(page: Page, pattern: str, status: int, title: str, code: str) -> None:
    """Answers requests of a pattern without the key `sesame` with a problem."""
    problem = {"status": status, "title": title, "code": code}

    def handle(route: Route) -> None:
        if route.request.headers.get("authorization") == "Bearer sesame":
            route.fallback()
        else:
            route.fulfill(status=status, json=problem)

    page.route(pattern, handle)


def get_box(part: Locator) -> Any:
    """Returns x, y, width and height of a part that is shown."""
    box = part.bounding_box()
    assert box is not None
    return box


def open_form(visit: Visit, path: str) -> Locator:
    """Opens the form of a route on `/docs`."""
    visit.page.goto(f"{visit.url}/docs")
    route = visit.page.locator(".opblock-post", has=visit.page.locator(f'[data-path="{path}"]'))
    route.locator(".opblock-summary").click()
    route.get_by_role("button", name="Try it out").click()
    return route


def execute(route: Locator, status: int) -> None:
    """Sends a form of `/docs` and waits for its answer."""
    route.get_by_role("button", name="Execute").click()
    expect(route.locator(".live-responses-table .response-col_status")).to_contain_text(
        [str(status)]
    )


def assert_accessible(visit: Visit, name: str, width: int) -> None:
    """Checks that a page fits its width and axe's rules; `SCREENSHOTS=folder` writes a picture."""
    folder = os.environ.get("SCREENSHOTS")
    if folder:
        visit.page.screenshot(path=Path(folder) / f"{name}-{width}.png", full_page=True)
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    report = Axe().run(visit.page)
    assert report.violations_count == 0, report.generate_report()


def assert_accessible_at(visit: Visit, name: str, schemes: Mapping[int, Any]) -> None:
    """Checks a page at widths, each in `light` or `dark`."""
    for width, scheme in schemes.items():
        visit.page.set_viewport_size({"width": width, "height": 844})
        visit.page.emulate_media(color_scheme=scheme)
        assert_accessible(visit, name, width)
