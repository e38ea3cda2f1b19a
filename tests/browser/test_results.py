"""The labels of a photo on the page: thresholds, columns, maps, and the request that is shown."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from playwright.sync_api import Locator, Page, Route, expect

from service.bundle.card import InputContract
from service.pipeline.explanation import find_seen_part
from tests.browser.actions import (
    CAT,
    FOUND,
    ask,
    choose,
    download_rows,
    expect_sets,
    find_box,
    find_row,
    get_box,
    hold,
    make_payload,
    open_tab,
    register,
    rows,
    settle,
    show_best,
    show_from,
    type_labels,
)
from tests.browser.conftest import MAP, Visit, answer_map
from tests.e2e.server_process import ROOT
from tests.support.photos import make_photo


def open_mapped(visit: Visit, maps: list[list[float]] = MAP) -> Page:
    """Opens the page with the best labels and maps of open labels."""
    visit.maps = maps
    page = visit.open()
    show_best(page)
    return page


def open_with_map(visit: Visit) -> Page:
    """Opens the page and shows where the lamp is."""
    page = open_mapped(visit)
    find_row(page, "lamp").click()
    expect(page.locator("#map")).to_be_visible()
    return page


def test_page_shows_the_tags_of_a_sample(visit: Visit) -> None:
    page = visit.open()
    expect(page.get_by_role("img", name="Sample: cat").first).to_be_visible()
    expect(find_box(page, "everyday")).to_be_checked()
    assert visit.asked == [{"min_labels": ["1000"], "parents": ["true"]}]
    curl = page.locator("#curl").text_content() or ""
    assert "label_set" not in curl, "the service chose the sets"
    assert rows(page, part=FOUND) == ask(visit.url, CAT)
    show_best(page, 3)
    assert rows(page) == ask(visit.url, CAT, top_k=3)
    page.check("[value=filled]")
    for least in ("1", "9"):
        page.fill("#top-k", least)
        assert rows(page) == ask(visit.url, CAT, min_labels=least)
    assert len(visit.asked) == 1
    expect(page.locator(".column > .quiet")).to_contain_text("ms")


def test_default_sets_are_looked_for_beside_words_typed_before_the_first_photo(
    visit: Visit,
) -> None:
    page = visit.page
    page.goto(visit.url)
    page.get_by_label("Your own words").fill("yak")
    page.get_by_role("button", name="Sample: cat").click()
    expect_sets(page, "trained", "everyday")
    assert list(rows(page, part=".own")) == ["yak"]
    assert visit.asked[-1]["label_set"] == ["trained", "everyday"]


def test_slider_is_shown_when_it_counts_and_sends_no_request(visit: Visit) -> None:
    page = visit.open()
    slider = page.get_by_label("Threshold for every label")
    for mode in ("calibrated", "best", "number"):
        page.check(f"[value={mode}]")
        expect(slider).to_be_visible(visible=mode == "number")
    for value in (0, 0.5, 0.52):
        show_from(page, value)
        assert rows(page, part=FOUND) == ask(visit.url, CAT, threshold=value, top_k=10)
    page.fill("#top-k", "2")
    assert len(rows(page, part=FOUND)) <= 2
    assert len(visit.asked) == 1


@pytest.mark.parametrize(("width", "height"), [(1280, 500), (390, 700)])
def test_photo_and_map_stay_in_view_and_cover_nothing(
    visit: Visit, width: int, height: int
) -> None:
    visit.page.set_viewport_size({"width": width, "height": height})
    page = open_mapped(visit)
    type_labels(page, ", ".join(f"label {number}" for number in range(20)))
    last, photo = page.locator("button.label").last, page.locator("#photo-side")
    last.click()
    expect(page.locator("#map-caption")).not_to_be_empty()
    for part in (page.locator("#map"), page.locator("#map-caption"), last):
        box = get_box(part)
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= height
    for _ in range(20 if width == 390 else 0):
        page.keyboard.press("Shift+Tab")
        above = get_box(photo)
        assert get_box(page.locator(":focus"))["y"] >= above["y"] + above["height"]


def test_maybes_are_the_three_best_labels_from_half_of_their_threshold_and_a_fifth_on(
    visit: Visit,
) -> None:
    page = visit.open()
    photo = {"image": CAT.read_bytes()}
    labels = httpx.post(f"{visit.url}/predict?top_k=99", files=photo).json()["labels"]
    most = 0
    for value in (0.25, 0.7, 0.85, 1):
        show_from(page, value)
        found = [la["label"] for la in labels if la["score"] >= value]
        maybe = [la["label"] for la in labels if value > la["score"] >= max(value / 2, 0.2)]
        assert list(rows(page, part=FOUND)) == found
        assert list(rows(page, part=".maybe")) == maybe[:3]
        most = max(most, len(maybe))
        headline = ", ".join(found[:3]) or "Nothing found"
        summary = re.compile(rf"^{headline}( and \d more|\.)?$")
        expect(page.locator("#summary")).to_have_text(summary)
    assert most > 3


def test_nothing_found_offers_the_next_step_and_keeps_own_labels(visit: Visit) -> None:
    register(visit, "herd", "yak")
    page = visit.open()
    find_box(page, "herd").check()
    type_labels(page, "newt")
    expect_sets(page, "herd", "trained", "everyday")
    show_from(page, 1)
    expect(page.locator("#summary")).to_contain_text("Nothing found")
    assert set(rows(page, part=".own")) == {"yak", "newt"}
    page.get_by_role("button", name="Add labels of your own").click()
    expect(page.get_by_label("Your own words")).to_be_focused()
    with page.expect_file_chooser():
        page.get_by_role("button", name="Choose another photo").click()
    page.get_by_role("button", name="Lower the threshold").click()
    expect(page.get_by_label("Threshold for every label")).to_be_focused()
    assert rows(page, part=FOUND)
    expect(page.locator(".nothing")).to_have_count(0)


CALIBRATION = {
    **{"scale": 0.7, "shift": -1.2, "dataset": "street/val", "images": 800, "labels": 18},
    **{"error_before": 0.24, "error_after": 0.009},
    "bins": [
        {"scores": 900, "mean_score": 0.04, "share_right": 0.041},
        {"scores": 0, "mean_score": 0.0, "share_right": 0.0},
        {"scores": 70, "mean_score": 0.25, "share_right": 0.243},
    ],
}


def test_calibrated_scores_have_a_meaning_and_a_table_in_the_card(visit: Visit) -> None:
    visit.calibration = CALIBRATION
    page = visit.open()
    meaning = page.locator("#threshold-meaning")
    expect(meaning).to_have_text("0.50: more likely than not")
    show_from(page, 0.8)
    expect(meaning).to_have_text("0.80: right at least 80 times in 100")
    page.get_by_role("button", name="Model card").click()
    card = page.get_by_role("dialog", name="Model card")
    expect(card).to_contain_text("800 photos of street/val: error 0.009, 0.240 before")
    table = card.get_by_role("table", name="Scores of trained labels")
    expect(table.get_by_role("row", name="0.2 to 0.3 70 0.250 0.243")).to_be_visible()
    expect(table.get_by_role("row")).to_have_count(3)


def test_page_and_card_say_so_when_scores_are_not_calibrated(visit: Visit) -> None:
    page = visit.open()
    expect(page.locator("#threshold-meaning")).to_contain_text("not calibrated")
    page.get_by_role("button", name="Model card").click()
    card = page.get_by_role("dialog", name="Model card")
    expect(card).to_contain_text("not calibrated")
    expect(card).to_contain_text("Apache-2.0")
    expect(card.get_by_role("row", name="dog 0.60")).to_be_visible()
    page.keyboard.press("Escape")
    expect(card).to_be_hidden()


def test_chips_rows_and_downloads_follow_the_flag_of_the_service(visit: Visit) -> None:
    """The flags contradict the scores."""

    def turn(route: Route) -> None:
        response = route.fetch(post_data=route.request.post_data_buffer)
        body = response.json()
        for label in body["labels"]:
            label["found"] = label["score"] < label["threshold"]
        route.fulfill(response=response, json=body)

    visit.page.route("**/predict", turn)
    page = visit.open()
    photo = {"image": CAT.read_bytes()}
    labels = httpx.post(f"{visit.url}/predict?top_k=99", files=photo).json()["labels"]
    turned = [label["label"] for label in labels if not label["found"]]
    assert turned
    expect(page.locator(".chip")).to_have_text(turned)
    assert list(rows(page, part=FOUND)) == turned
    page.check("[value=filled]")
    page.fill("#top-k", str(len(turned) + 1))
    other = next(label["label"] for label in labels if label["found"])
    assert list(rows(page, part=".maybe")) == [other]
    expect(page.locator(".chip")).to_have_text(turned)
    page.check("[value=calibrated]")
    choose(page, make_payload("cat.png", CAT.read_bytes()))
    open_tab(page, "Many photos")
    expect(page.locator("#downloads-status")).to_have_text("1 of 1 photo tagged")
    assert [row["label"] for row in download_rows(page)] == turned


def test_bar_and_mark_show_score_and_threshold(visit: Visit) -> None:
    page = visit.open()
    show_best(page)
    for row in page.locator(".label").all():
        bar, fill, mark = (get_box(row.locator(part)) for part in (".bar", ".fill", ".mark"))
        score = float(row.locator(".score").inner_text())
        assert fill["width"] / bar["width"] == pytest.approx(score, abs=0.02)
        threshold = float(row.locator(".bar").get_attribute("title").split()[-1])  # type: ignore[union-attr]
        assert (mark["x"] + 1 - bar["x"]) / bar["width"] == pytest.approx(threshold, abs=0.02)
        passes = "passes" in (row.locator(".fill").get_attribute("class") or "")
        assert passes == (score >= threshold), "the bundle has no ratings"


def test_two_label_sets_are_compared_and_focus_stays_in_the_column(visit: Visit) -> None:
    page = open_mapped(visit)
    page.get_by_label("Compare with").select_option("everyday")
    expect(page.locator(".column")).to_have_count(2)
    assert rows(page, 0) == ask(visit.url, CAT, top_k=10)
    assert rows(page, 1) == ask(visit.url, CAT, label_set="everyday", top_k=10)
    lamps = find_row(page, "lamp")
    for column in (1, 0):
        lamps.nth(column).focus()
        page.keyboard.press("Space")
        expect(page.locator("#map")).to_be_visible()
        expect(lamps.nth(column)).to_have_attribute("aria-pressed", "true")
        expect(lamps.nth(column)).to_be_focused()


@pytest.mark.parametrize(
    ("width", "height", "peak"), [(400, 200, "top left"), (200, 400, "middle left")]
)
def test_map_covers_what_the_service_says(visit: Visit, width: int, height: int, peak: str) -> None:
    page = visit.open()
    spec = InputContract(height=32, width=32, resize_mode="pad", interpolation="bilinear")
    call = "async ([name, ...given]) => (await import('./page/map.js'))[name](...given)"
    for mode in ("squash", "crop", "pad"):
        contract = spec.model_copy(update={"resize_mode": mode})
        x, y, right, bottom = find_seen_part((width, height), contract)
        found = page.evaluate(call, ["findSeenPart", width, height, contract.model_dump()])
        assert found == {"x": x, "y": y, "width": right - x, "height": bottom - y}
    photo, grid = {"naturalWidth": width, "naturalHeight": height}, [[0] * 4 for _ in range(4)]
    grid[1][0] = 1  # of the padded square
    assert page.evaluate(call, ["describePeak", photo, grid, spec.model_dump()]) == peak


def test_pressed_label_shows_its_map_until_escape(visit: Visit) -> None:
    page = open_with_map(visit)
    lamp = find_row(page, "lamp")
    expect(page.locator("#map-caption")).to_contain_text("“lamp”, most of all bottom right")
    expect(lamp).to_have_attribute("aria-pressed", "true")
    assert visit.asked[-1]["include"] == ["lamp"]
    alpha = """canvas => [[1, 1], [0.83, 0.83]].map(([x, y]) => {
        const at = [Math.floor(canvas.width * x) - 1, Math.floor(canvas.height * y) - 1];
        return canvas.getContext('2d').getImageData(...at, 1, 1).data[3];
    }).concat(canvas.getContext('2d').getImageData(1, 1, 1, 1).data[3])"""
    corner, peak, far = page.locator("#map").evaluate(alpha)
    assert peak < 40
    assert corner < 60
    assert far > 190
    page.keyboard.press("Escape")
    expect(page.locator("#map")).to_be_hidden()
    expect(lamp).to_have_attribute("aria-pressed", "false")


def test_label_with_a_comma_shows_its_map_and_an_empty_map_a_message(visit: Visit) -> None:
    name = "tench, Tinca tinca"
    register(visit, "fish", name)
    visit.maps = MAP
    page = visit.open()
    find_box(page, "fish").check()
    show_best(page)
    find_row(page, name).click()
    expect(page.locator("#map-caption")).to_contain_text(f"“{name}”")
    assert visit.asked[-1]["include"] == [name, ""]
    visit.maps = [[0.0, 0.0], [0.0, 0.0]]
    find_row(page, "lamp").click()
    expect(page.locator("#map-caption")).to_have_text("The map of “lamp” is empty.")
    expect(page.locator("#map")).to_be_hidden()


def press_while_held(page: Page, button: Locator) -> Route:
    """Clicks, and returns the held prediction request once no map is shown."""
    take = hold(page, "**/predict")
    with page.expect_request("**/predict"):
        button.click()
    expect(page.locator("#map")).to_be_hidden()
    expect(page.locator("#map-caption")).to_be_empty()
    return take()


def test_failed_map_shows_an_error_and_removes_the_previous_map(visit: Visit) -> None:
    page = open_with_map(visit)
    held = press_while_held(page, find_row(page, "table"))
    held.fulfill(status=500, json={"title": "The model could not be run"})
    expect(page.get_by_role("alert")).to_have_text("The model could not be run")
    expect(page.locator("#map")).to_be_hidden()
    expect(page.locator("[aria-pressed=true]")).to_have_count(0)
    page.unroute("**/predict")
    page.route("**/predict", lambda route: answer_map(route, visit))
    find_row(page, "chair").click()
    expect(page.locator("#map-caption")).to_contain_text("“chair”")
    expect(page.get_by_role("alert")).to_be_hidden()
    press_while_held(page, page.get_by_role("button", name="Sample: rocket at night")).fallback()


def test_only_labels_of_a_head_with_maps_are_buttons(visit: Visit) -> None:
    page = open_mapped(visit)
    expect_sets(page, "trained", "everyday")
    assert set(page.locator("button.label .name").all_inner_texts()) == {"lamp", "table", "chair"}
    expect(page.locator("#map-hint")).to_be_visible()
    visit.maps = None
    visit.open()
    show_best(page)
    expect(page.locator("#map-hint")).to_be_hidden()
    expect(page.locator("button.label")).to_have_count(0)
    assert rows(page)


@pytest.mark.parametrize(
    ("name", "mode"), [("plain.png", "number"), ('it\'s; a "b", \\c.png', "best")]
)
def test_copied_curl_returns_the_answer_that_is_shown_as_json(
    visit: Visit, tmp_path: Path, name: str, mode: str
) -> None:
    page = open_with_photo(visit, tmp_path / name)
    type_labels(page, 'it\'s a "yak"; newt & co')
    show_from(page, 0.45)
    page.check(f"[value={mode}]")
    page.get_by_role("tab", name="API").click()
    page.get_by_text("Answer as JSON").click()
    shown, curl = (copy(page, button) for button in ("Copy the answer", "Copy as curl"))
    asked = run(["bash", "-c", f"{curl} --silent"], tmp_path)
    answers: list[dict[str, Any]] = [json.loads(answer) for answer in (shown, asked)]
    for answer in answers:
        del answer["timings"], answer["request_id"]
    assert answers[0] == answers[1]
    assert answers[0]["labels"]


@pytest.mark.parametrize(
    ("mode", "most"), [("calibrated", 1), ("calibrated", 99), ("best", 4), ("filled", 4)]
)
def test_copied_python_prints_the_shown_labels(
    visit: Visit, tmp_path: Path, mode: str, most: int
) -> None:
    page = open_with_photo(visit, tmp_path / "own.png")
    settle(page, visit, 2)
    show_from(page, 0.45)
    page.check(f"[value={mode}]")
    page.fill("#top-k", str(most))
    shown = rows(page, part=FOUND if mode == "calibrated" else "")
    assert shown
    page.get_by_role("tab", name="API").click()
    printed = run([sys.executable, "-c", copy(page, "Copy as Python")], tmp_path).splitlines()
    assert sorted(printed) == sorted(f"{label}: {score:.3f}" for label, score in shown.items())


def open_with_photo(visit: Visit, path: Path) -> Page:
    page = visit.open()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    path.write_bytes(make_photo(3))
    choose(page, path)
    return page


def copy(page: Page, button: str) -> str:
    """Presses a button that copies, and returns the copied text."""
    page.get_by_role("button", name=button).click()
    expect(page.locator("#toast-text")).to_contain_text(button.split()[-1], ignore_case=True)
    text: str = page.evaluate("navigator.clipboard.readText()")
    return text


def run(command: list[str], folder: Path) -> str:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_chips_copy_one_tag_or_all(visit: Visit) -> None:
    page = visit.open()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    type_labels(page, "yak")
    show_from(page, 0)
    tags = page.locator(".chip").all_inner_texts()
    assert set(tags) == set(rows(page, part=FOUND))
    for button, copied in ((f"Copy {tags[0]}", tags[0]), ("Copy all", ", ".join(tags))):
        page.get_by_role("button", name=button, exact=True).click()
        expect(page.locator("#toast-text")).to_have_text(f"Copied: {copied}")
        assert page.evaluate("navigator.clipboard.readText()") == copied


def test_words_and_their_scores_are_at_the_top_of_a_phone_while_they_are_typed(
    visit: Visit,
) -> None:
    visit.page.set_viewport_size({"width": 390, "height": 844})
    visit.maps = MAP
    page = visit.open()
    page.get_by_label("Your own words").click()
    page.set_viewport_size({"width": 390, "height": 450})  # as the keyboard leaves it
    type_labels(page, "yak, newt")
    for part in (page.locator("#candidates"), page.locator(".own .label").last):
        box = get_box(part)
        assert 0 <= box["y"] <= 450 - box["height"]
    page.set_viewport_size({"width": 390, "height": 1600})  # the page would be shorter
    page.evaluate("document.getElementById('options').open = false")
    find_row(page, "yak").click()
    expect(page.locator("#map")).to_be_visible()


def test_address_names_the_tab(visit: Visit) -> None:
    page = visit.open()
    page.get_by_role("tab", name="Labels").click()
    assert page.url.endswith("#labels")
    page.reload()
    expect(page.get_by_role("tabpanel", name="Labels")).to_be_visible()
    page.goto(f"{visit.url}/#api")
    expect(page.get_by_role("tabpanel", name="API")).to_be_visible()
    expect(page.get_by_role("tabpanel", name="Labels")).to_be_hidden()
