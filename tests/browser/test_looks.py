"""Accessibility: axe's rules and every width, in light and dark, and the keyboard alone.

`SCREENSHOTS=folder` writes a picture of every case.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.actions import assert_accessible_at, choose, find_row, make_payload, type_labels
from tests.browser.conftest import MAP, Visit
from tests.support.photos import make_photo, write_photos

MOST_STOPS = 100


def fill_page(visit: Visit) -> None:
    """Brings the page into the state with the most elements."""
    visit.maps = MAP
    page = visit.open()
    type_labels(page, "a label that is rather long, yak")
    page.get_by_label("Compare with").select_option("everyday")
    page.check("[value=best]")
    page.locator(".column").nth(1).wait_for()
    find_row(page, "yak").first.click()
    page.locator("#map").wait_for()
    page.wait_for_timeout(600)  # the summary is announced after a pause


def find_nothing(visit: Visit) -> None:
    page = visit.open()
    type_labels(page, f"a label that is rather long, {'w' * 120}, ягода")
    page.check("[value=number]")
    page.get_by_label("Threshold for every label").fill("1")
    page.locator(".nothing").wait_for()
    page.locator(".maybe").wait_for()


def choose_photos(page: Page, *contents: bytes) -> None:
    """Chooses photos with these contents."""
    names = (f"holiday-in-the-mountains-{i}.png" for i in range(len(contents)))
    choose(page, *map(make_payload, names, contents))


def choose_several(visit: Visit) -> None:
    page = visit.open()
    choose_photos(page, make_photo(1), b"junk", make_photo(2))
    expect(page.locator("#downloads-status")).to_have_text("2 of 3 photos tagged, 1 failed")


def show_code(visit: Visit) -> None:
    page = visit.open()
    page.get_by_role("tab", name="API").click()
    page.get_by_text("Answer as JSON").click()


def open_empty(visit: Visit) -> None:
    visit.page.goto(visit.url)
    visit.page.locator("#choices input").first.wait_for(state="attached")


def choose_broken(visit: Visit) -> None:
    page = visit.open()
    choose_photos(page, b"junk")
    page.get_by_role("alert").wait_for()


def wait_for_others(visit: Visit) -> None:
    page = visit.open()
    page.route(
        "**/predict",
        lambda route: (
            None if b"mountains-1" in (route.request.post_data_buffer or b"") else route.fallback()
        ),
    )
    choose_photos(page, make_photo(1), make_photo(2))
    expect(page.locator("#downloads-status")).to_have_text("1 of 2 photos tagged")


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
    *(open_empty, fill_page, find_nothing, choose_several, choose_broken, wait_for_others),
    *(show_code, lack_key, open_key, open_card),
]


@pytest.mark.parametrize("state", STATES)
def test_page_fits_every_width_and_passes_axe(visit: Visit, state: Callable[[Visit], None]) -> None:
    visit.page.emulate_media(reduced_motion="reduce")
    state(visit)
    more = {390: "dark", 768: "light"} if state is fill_page else {}
    assert_accessible_at(visit, state.__name__, {320: "light", **more, 1280: "dark"})


def tab_to(page: Page, selector: str) -> None:
    """Presses Tab until the focus is on `selector`."""
    for _ in range(MOST_STOPS):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"Tab does not reach {selector}")


def press(page: Page, selector: str, key: str = "Enter") -> None:
    tab_to(page, selector)
    page.keyboard.press(key)


def pick(page: Page, selector: str, *photos: Path) -> None:
    """Opens the file dialog of a field and chooses photos."""
    with page.expect_file_chooser() as event:
        press(page, selector, "Space")
    event.value.set_files(photos)


def open_by_arrow(page: Page, name: str, key: str = "ArrowRight") -> None:
    """Moves from tab to tab until this one is open."""
    tab_to(page, "[role=tab]")
    while page.locator("[role=tab]:focus").inner_text() != name:
        page.keyboard.press(key)
    expect(page.get_by_role("tabpanel", name=name)).to_be_visible()


def test_page_works_with_the_keyboard_alone(visit: Visit, tmp_path: Path) -> None:
    photos = write_photos(tmp_path, 2)
    visit.maps = MAP
    page = visit.open()

    tab_to(page, "#candidates")
    page.keyboard.type("yak, newt")
    expect(find_row(page, "newt")).to_be_visible()
    press(page, "button.label[data-label=yak]")
    expect(page.locator("#map")).to_be_visible()
    expect(page.locator("button.label[data-label=yak]")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#map")).to_be_hidden()
    press(page, "[name=mode]", "ArrowDown")
    press(page, "#threshold", "ArrowRight")
    expect(page.locator("#threshold-value")).to_have_text("0.51")
    tab_to(page, "#compare")

    press(page, "#save-words")
    expect(page.locator("#new-set-name")).to_be_focused()
    page.keyboard.type("herd")
    press(page, "#new-set-save")
    expect(page.locator("#new-set-status")).to_contain_text("2 labels")
    page.locator("#calibrate-body").wait_for()
    pick(page, "#calibrate-with", photos[0])
    pick(page, "#calibrate-without", photos[1])
    expect(page.locator("#calibrate-counts")).to_have_text("Scored: 1 of it, 1 without it")
    press(page, "#calibrate-threshold", "Home")
    press(page, "#calibrate-keep")
    expect(page.locator("#calibrate-status")).to_have_text("yak has the threshold 0.0000 now.")

    open_by_arrow(page, "API")
    press(page, "[data-copy=curl]")
    expect(page.locator("#toast-text")).not_to_be_empty()
    press(page, "#card-open")
    page.keyboard.press("Escape")

    open_by_arrow(page, "Try")
    pick(page, "#files", *photos)
    expect(page.locator("#downloads-status")).to_have_text("2 of 2 photos tagged")
    for kind in ("csv", "json"):
        with page.expect_download():
            press(page, f"#download-{kind}")
