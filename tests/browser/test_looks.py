"""How the playground looks: accessibility rules, phone width, light and dark.

`SCREENSHOTS=folder` writes a picture of every case.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import FilePayload, Page, expect

from tests.browser.conftest import MAP, Visit
from tests.support.photos import make_photo

Scheme = Literal["light", "dark"]


def fill_page(visit: Visit) -> None:
    """Brings the page into the state with the most elements."""
    visit.maps = MAP
    page = visit.open()
    page.get_by_label("Any words").fill("a label that is rather long, yak")
    page.get_by_role("heading", name="your own + trained + everyday").wait_for()
    page.get_by_label("Compare with").select_option("everyday")
    page.check("[value=best]")
    page.locator(".column").nth(1).wait_for()
    page.get_by_role("button", name="yak").click()
    page.locator("#map").wait_for()
    page.wait_for_timeout(600)  # the summary is announced after a pause


def find_nothing(visit: Visit) -> None:
    page = visit.open()
    page.get_by_label("Any words").fill(f"a label that is rather long, {'w' * 120}, ягода")
    page.get_by_role("heading", name="your own + trained + everyday").wait_for()
    page.check("[value=number]")
    page.get_by_label("Threshold for every label").fill("1")
    page.locator(".nothing").wait_for()
    page.locator(".maybe").wait_for()


def choose(page: Page, *contents: bytes) -> None:
    """Chooses photos with these contents."""
    files: list[FilePayload] = [
        {"name": f"holiday-in-the-mountains-{i}.png", "mimeType": "image/png", "buffer": content}
        for i, content in enumerate(contents)
    ]
    page.get_by_label("Choose photos").set_input_files(files)


def choose_several(visit: Visit) -> None:
    page = visit.open()
    choose(page, make_photo(1), b"junk", make_photo(2))
    expect(page.locator("#downloads-status")).to_have_text("2 of 3 photos labelled, 1 failed")
    page.get_by_text("Answer as JSON").click()


def choose_broken(visit: Visit) -> None:
    page = visit.open()
    choose(page, b"junk")
    page.get_by_role("alert").wait_for()


def wait_for_others(visit: Visit) -> None:
    page = visit.open()
    page.route(
        "**/predict",
        lambda route: (
            None if b"mountains-1" in (route.request.post_data_buffer or b"") else route.fallback()
        ),
    )
    choose(page, make_photo(1), make_photo(2))
    expect(page.locator("#downloads-status")).to_have_text("1 of 2 photos labelled")


def lack_key(visit: Visit) -> None:
    problem = {"status": 401, "title": "A valid key is needed", "code": "unauthorised"}
    visit.page.route("**/info", lambda route: route.fulfill(status=401, json=problem))
    visit.page.goto(visit.url)
    visit.page.get_by_role("alert").wait_for()


def open_key(visit: Visit) -> None:
    visit.open()
    visit.page.evaluate("sessionStorage.setItem('ml-decoder-key', 'k')")
    visit.open().get_by_role("button", name="API key").click()


def open_card(visit: Visit) -> None:
    visit.open().get_by_role("button", name="Model card").click()


STATES: list[Callable[[Visit], None]] = [
    *(fill_page, find_nothing, choose_several, choose_broken, wait_for_others),
    *(lack_key, open_key, open_card),
]
CASES = [(fill_page, 390, "dark"), (fill_page, 768, "light")] + [
    (state, width, scheme) for state in STATES for width, scheme in ((320, "light"), (1280, "dark"))
]


@pytest.mark.parametrize(("state", "width", "scheme"), CASES)
def test_page_fits_its_width_and_passes_axe(
    visit: Visit, state: Callable[[Visit], None], width: int, scheme: Scheme
) -> None:
    visit.page.set_viewport_size({"width": width, "height": 844})
    visit.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    state(visit)
    keep_screenshot(visit, f"{state.__name__}-{width}-{scheme}")
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    assert_accessible(visit)


def keep_screenshot(visit: Visit, name: str) -> None:
    folder = os.environ.get("SCREENSHOTS")
    if folder:
        visit.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def assert_accessible(visit: Visit) -> None:
    found = Axe().run(visit.page)
    assert found.violations_count == 0, found.generate_report()
