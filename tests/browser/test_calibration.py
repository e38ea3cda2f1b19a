"""The threshold of a label, chosen on the page from photos."""

from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, Route, expect

from service.calibration import find_threshold
from tests.browser.actions import ask, assert_accessible_at, open_tab, read_labels, register
from tests.browser.conftest import Visit
from tests.support.photos import make_photo, write_photos


@pytest.fixture
def page(visit: Visit) -> Page:
    """The tab Labels of a service with the set `herd`."""
    register(visit, "herd", {"name": "yak", "prompt": "a photo of a yak"}, "newt")
    page = visit.open()
    open_tab(page, "Labels")
    return page


def score(visit: Visit, photo: Path, label: str = "yak") -> float:
    return ask(visit.url, photo, label_set="herd", include=label, top_k=1)[label]


def expect_counts(page: Page, shown: int, others: int) -> None:
    counts = f"Scored: {shown} of it, {others} without it"
    expect(page.locator("#calibrate-counts")).to_have_text(counts)


def get_place(part: Locator) -> float:
    """Returns where a part of a strip is, in percent of its width."""
    return float(part.evaluate("each => parseFloat(each.style.left)"))


def give(page: Page, photos: list[Path], kind: str) -> None:
    page.locator(f"#calibrate-{kind}").set_input_files(photos)


def test_best_threshold_is_found_moved_and_saved(page: Page, visit: Visit, tmp_path: Path) -> None:
    photos = write_photos(tmp_path, 9)
    scores = [score(visit, photo) for photo in photos]
    give(page, photos[:5], "with")
    give(page, photos[5:], "without")
    expect_counts(page, 5, 4)
    best = find_threshold(np.array(scores), np.array([1] * 5 + [0] * 4))
    assert best is not None
    expect(page.locator("#calibrate-figures")).to_contain_text(f"Precision {best.precision:.2f}")
    expect(page.locator("#calibrate-figures")).to_contain_text(f"Recall {best.recall:.2f}")
    slider = page.get_by_label("Threshold", exact=True)
    value = float(page.locator("#calibrate-value").inner_text())
    assert value == pytest.approx(best.threshold, abs=0.001)
    assert slider.get_attribute("aria-valuetext") == page.locator("#calibrate-value").inner_text()
    strip = page.locator("#calibrate-strip").get_by_role("img", name="5 of it from")
    assert get_place(strip.locator(".threshold")) == pytest.approx(100 * value ** (1 / 3), abs=0.1)
    assert strip.locator(".of-it, .without-it").count() == 9

    slider.fill("0")
    expect(page.locator("#calibrate-figures")).to_contain_text(
        "Precision 0.56: 5 of 9 found photos show it. "
        "Recall 1.00: 5 of 5 photos that show it are found."
    )
    expect(page.locator("#calibrate-few")).to_contain_text(
        "0.0000 is very low: many photos without the label may reach it. Add at least 16 more"
    )
    page.get_by_label("how many show it?").fill("2")
    expect(page.locator("#calibrate-figures")).to_contain_text(
        "Precision among your photos 0.02: 2 of 100 show it."
    )
    slider.fill("1")
    expect(page.locator("#calibrate-figures")).to_contain_text("Precision -: 0 of 0")
    expect(page.locator("#calibrate-figures")).not_to_contain_text("among your photos")
    expect(page.locator("#calibrate-few")).to_be_hidden()
    slider.fill("0.5")
    page.get_by_role("button", name="Save threshold").click()
    expect(page.locator("#calibrate-status")).to_have_text("yak has the threshold 0.125 now.")
    expect(page.locator("#calibrate-saved")).to_have_text("Saved: 0.125")
    yak, newt = read_labels(visit, "/herd")["labels"]
    assert (yak["threshold"], yak["calibrated"], yak["prompt"]) == (0.125, True, "a photo of a yak")
    assert not newt["calibrated"]


def test_too_few_photos_move_no_threshold_and_say_what_to_add(
    page: Page, visit: Visit, tmp_path: Path
) -> None:
    photos = write_photos(tmp_path, 8)
    warning, value = page.locator("#calibrate-few"), page.locator("#calibrate-value")
    give(page, photos[:4], "with")
    expect_counts(page, 4, 0)
    expect(warning).to_contain_text("add 1 more that shows it, and some that do not show it.")
    expect(page.get_by_role("button", name="Save anyway")).to_be_enabled()
    give(page, photos[5:], "without")
    expect_counts(page, 4, 3)
    expect(warning).to_contain_text("add 1 more that shows it. Until then")
    expect(value).to_have_text("0.300")
    give(page, photos[4:5], "with")
    expect_counts(page, 5, 3)
    expect(value).not_to_have_text("0.300")
    expect(warning).not_to_contain_text("Too few")
    page.get_by_role("button", name="Remove 04.png").click()
    expect_counts(page, 4, 3)
    expect(warning).to_contain_text("Too few photos")
    expect(value).to_have_text("0.300")
    expect(page.get_by_role("button", name="Save anyway")).to_be_enabled()
    assert_accessible_at(visit, "calibrate", {320: "dark", 1280: "light"})


def test_dropped_photo_is_scored_and_a_broken_one_named(page: Page) -> None:
    drop = """async (zone, bytes) => {
        const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], "dropped.png"));
        zone.dispatchEvent(new DragEvent("drop", {
            dataTransfer: data, bubbles: true, cancelable: true,
        }));
    }"""
    zone = page.locator("#calibrate-body .picker").first
    photos = page.locator("#tiles > li")
    before = photos.count()
    zone.evaluate(drop, list(make_photo(1)))
    expect_counts(page, 1, 0)
    zone.evaluate(drop, [1, 2, 3])
    expect(page.locator("#calibrate-status")).to_have_text(
        "dropped.png: The file is damaged or is not an image"
    )
    expect_counts(page, 1, 0)
    expect(photos).to_have_count(before)


def test_threshold_of_a_set_that_was_changed_meanwhile_is_not_saved(
    page: Page, visit: Visit, tmp_path: Path
) -> None:
    give(page, write_photos(tmp_path, 1), "with")
    expect(page.get_by_role("button", name="Save anyway")).to_be_enabled()
    register(visit, "herd", {"name": "yak", "prompt": "a bull"})
    page.get_by_role("button", name="Save anyway").click()
    expect(page.locator("#calibrate-status")).to_contain_text("herd was changed meanwhile")
    expect(page.locator("#calibrate-label option")).to_have_count(1)
    expect_counts(page, 1, 0)
    assert not read_labels(visit, "/herd")["labels"][0]["calibrated"]


def test_another_label_starts_without_photos(page: Page, tmp_path: Path) -> None:
    photos = write_photos(tmp_path, 1)
    for restart in (
        lambda: page.locator("#calibrate-label").select_option("newt"),
        lambda: page.get_by_role("button", name="Remove photos").click(),
    ):
        give(page, photos, "with")
        expect_counts(page, 1, 0)
        restart()
        expect(page.locator("#calibrate-counts")).to_be_empty()
        expect(page.locator("#calibrate-result")).to_be_hidden()


def test_precision_is_that_of_a_rare_label(page: Page, visit: Visit, tmp_path: Path) -> None:
    photos = sorted(write_photos(tmp_path, 14), key=lambda photo: score(visit, photo))
    give(page, photos[9:], "with")
    give(page, photos[:9], "without")
    expect_counts(page, 5, 9)
    figures, share = page.locator("#calibrate-figures"), page.get_by_label("how many show it?")
    share.fill("10")
    expect(figures).to_contain_text("Precision 1.00: 5 of 5")
    rare = (
        "Precision among your photos 0.25 or more: 10 of 100 show it. None of 9 without it is found"
    )
    expect(figures).to_contain_text(f"{rare}, so up to 33 % may be: add more.")
    for wrong in ("", "0", "100", "-3", "200"):
        share.fill(wrong)
        expect(figures).not_to_contain_text("among")
    share.fill("10")
    page.locator("#calibrate-label").select_option("newt")
    expect(share).to_have_value("")


def test_limit_of_a_proxy_is_named_and_other_photos_are_scored(page: Page, tmp_path: Path) -> None:
    first = iter([True])

    def refuse(route: Route) -> None:
        if next(first, False):
            route.fulfill(status=413, content_type="text/html", body="<h1>nginx</h1>")
        else:
            route.fallback()

    page.route("**/predict", refuse)
    give(page, write_photos(tmp_path, 2), "with")
    expect(page.locator("#calibrate-status")).to_have_text(
        "00.png: A proxy answered 413: raise its limit (nginx: client_max_body_size 20m)"
    )
    expect_counts(page, 1, 0)
