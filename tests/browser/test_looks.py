"""How the playground looks: accessibility rules, phone width, light and dark.

`SCREENSHOTS=folder` writes a picture of every case.
"""

import os
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.browser.conftest import MAP, Visit
from tests.support.photos import make_photo

Scheme = Literal["light", "dark"]


def fill_page(visit: Visit) -> None:
    """Brings the page into the state with the most elements."""
    page = visit.open()
    page.get_by_label("Any words").fill("a label that is rather long, yak")
    page.get_by_role("heading", name="your own + trained + everyday").wait_for()
    page.get_by_label("Compare with").select_option("everyday")
    page.check("[value=best]")
    page.locator(".column").nth(1).wait_for()
    page.get_by_role("button", name="yak").click()
    page.locator("#map").wait_for()
    page.wait_for_timeout(600)  # the summary is announced after a pause


def keep_screenshot(visit: Visit, name: str) -> None:
    folder = os.environ.get("SCREENSHOTS")
    if folder:
        visit.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_page_fits_its_width_and_passes_axe(visit: Visit, scheme: Scheme, width: int) -> None:
    visit.maps = MAP
    visit.page.set_viewport_size({"width": width, "height": 844})
    visit.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    fill_page(visit)
    keep_screenshot(visit, f"{width}-{scheme}")
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    assert_accessible(visit)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_that_found_nothing_fits_a_phone_and_passes_axe(visit: Visit, scheme: Scheme) -> None:
    visit.page.set_viewport_size({"width": 320, "height": 844})
    visit.page.emulate_media(color_scheme=scheme)
    page = visit.open()
    page.get_by_label("Any words").fill("a label that is rather long, yak")
    page.get_by_role("heading", name="your own + trained + everyday").wait_for()
    page.check("[value=number]")
    page.get_by_label("Threshold for every label").fill("1")
    page.locator(".nothing").wait_for()
    page.locator(".maybe").wait_for()
    keep_screenshot(visit, f"nothing-{scheme}")
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    assert_accessible(visit)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
def test_page_with_own_photos_passes_axe(
    visit: Visit, tmp_path: Path, scheme: Scheme, width: int
) -> None:
    visit.page.set_viewport_size({"width": width, "height": 844})
    visit.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page = visit.open()
    for i, content in enumerate((make_photo(1), b"junk", make_photo(2))):
        (tmp_path / f"holiday-in-the-mountains-{i}.png").write_bytes(content)
    page.get_by_label("Choose photos").set_input_files(sorted(tmp_path.iterdir()))
    expect(page.locator("#downloads-status")).to_have_text("2 of 3 photos labelled, 1 failed")
    page.get_by_text("Answer as JSON").click()
    keep_screenshot(visit, f"photos-{width}-{scheme}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert_accessible(visit)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_model_card_and_key_field_pass_axe(visit: Visit, scheme: Scheme) -> None:
    page = visit.page
    page.emulate_media(color_scheme=scheme)
    visit.open()
    page.evaluate("sessionStorage.setItem('ml-decoder-key', 'k')")
    visit.open()
    page.get_by_role("button", name="API key").click()
    assert_accessible(visit)
    page.get_by_role("button", name="Model card").click()
    keep_screenshot(visit, f"card-{scheme}")
    assert_accessible(visit)


def assert_accessible(visit: Visit) -> None:
    found = Axe().run(visit.page)
    assert found.violations_count == 0, found.generate_report()
