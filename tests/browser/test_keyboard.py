"""The playground with the keyboard alone."""

from pathlib import Path

import httpx2 as httpx
from playwright.sync_api import Page, expect

from tests.browser.conftest import MAP, Visit
from tests.support.photos import make_photo

MOST_STOPS = 100


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
    """Opens the file dialog of a file field and chooses photos."""
    with page.expect_file_chooser() as event:
        press(page, selector, "Space")
    event.value.set_files(photos)


def test_page_works_with_the_keyboard_alone(visit: Visit, tmp_path: Path) -> None:
    photos = [tmp_path / f"{i}.png" for i in range(2)]
    for i, photo in enumerate(photos):
        photo.write_bytes(make_photo(i))
    visit.maps = MAP
    page = visit.open()

    tab_to(page, "#candidates")
    page.keyboard.type("yak, newt")
    expect(page.locator(".column h3")).to_have_text("your own + trained + everyday")
    press(page, "button.label[data-label=yak]")
    expect(page.locator("#map")).to_be_visible()
    expect(page.locator("button.label[data-label=yak]")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#map")).to_be_hidden()

    pick(page, "#files", *photos)
    expect(page.locator("#downloads-status")).to_have_text("2 of 2 photos labelled")
    press(page, "#card-open")
    page.keyboard.press("Escape")
    for kind in ("csv", "json"):
        with page.expect_download():
            press(page, f"#download-{kind}")

    tab_to(page, "#keep-name")
    page.keyboard.type("herd")
    press(page, "#keep")
    expect(page.locator("#keep-status")).to_contain_text("Kept 2 labels as herd")
    press(page, "[name=mode]", "ArrowDown")
    press(page, "#threshold", "ArrowRight")
    expect(page.locator("#threshold-value")).to_have_text("0.51")
    tab_to(page, "#compare")

    page.locator("#calibrate-body").wait_for()
    pick(page, "#calibrate-with", photos[0])
    pick(page, "#calibrate-without", photos[1])
    expect(page.locator("#calibrate-counts")).to_have_text("Scored: 1 with the label, 1 without")
    press(page, "#calibrate-threshold", "Home")
    press(page, "#calibrate-keep")
    expect(page.locator("#calibrate-status")).to_have_text("yak has the threshold 0.0000 now.")
    press(page, "[data-copy=curl]")
    expect(page.locator("#copied")).not_to_be_empty()
    httpx.delete(f"{visit.url}/labels/herd").raise_for_status()
