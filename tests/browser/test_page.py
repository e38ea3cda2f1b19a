"""The playground in a real browser."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import MAP, Visit, answer_map
from tests.e2e.server_process import ROOT
from tests.support.photos import make_photo
from tests.support.serving import labels_of

SAMPLE = ROOT / "service" / "http" / "page" / "samples" / "chelsea.jpg"


def rows(page: Page, column: int = 0, part: str = "") -> dict[str, float]:
    """Labels of a column with their scores; `part` is `.found`, `.maybe` or `.own`."""
    items = page.locator(".column").nth(column).locator(f"{part} .label")
    names = items.locator(".name").all_inner_texts()
    scores = items.locator(".score").all_inner_texts()
    return dict(zip(names, map(float, scores), strict=True))


def ask(address: str, photo: Path, **parameters: Any) -> dict[str, float]:
    """The labels of a direct request, rounded as on the page."""
    files = {"image": photo.read_bytes()}
    response = httpx.post(f"{address}/predict", files=files, params=parameters, timeout=60)
    return {label: round(score, 3) for label, score in labels_of(response)}


def show_best(page: Page, top_k: int = 10) -> None:
    page.check("[value=best]")
    page.fill("#top-k", str(top_k))


def show_from(page: Page, threshold: float) -> None:
    page.check("[value=number]")
    page.get_by_label("Threshold for every label").fill(str(threshold))


def open_mapped(visit: Visit, maps: list[list[float]] = MAP) -> Page:
    """Opens the page with the best labels and maps of open labels."""
    visit.maps = maps
    page = visit.open()
    show_best(page)
    return page


def choose(page: Page, file: Path, content: bytes) -> None:
    """Writes a file and chooses it as a photo."""
    file.write_bytes(content)
    page.get_by_label("Choose photos").set_input_files(file)


def settle(page: Page, visit: Visit, asked: int) -> None:
    """Waits until the page has this many answers."""
    while len(visit.asked) < asked:
        page.wait_for_timeout(20)
    page.wait_for_selector("[aria-busy=false]")


def hold(page: Page, pattern: str) -> Callable[[], Route]:
    """Holds the requests of a pattern; the result waits for the next one and returns it."""
    held: list[Route] = []
    page.route(pattern, lambda route: held.append(route))

    def take() -> Route:
        while not held:  # the handler may run after the event of the request
            page.wait_for_timeout(10)
        return held.pop()

    return take


def test_page_shows_the_labels_of_the_first_sample(visit: Visit, samples: Path) -> None:
    page = visit.open()
    photo = samples / "chelsea.jpg"
    expect(page.get_by_role("img", name="Sample: cat").first).to_be_visible()
    assert rows(page, part=".found") == ask(visit.url, photo)
    show_best(page, 3)
    assert rows(page) == ask(visit.url, photo, top_k=3)
    expect(page.locator("#summary")).to_contain_text("ms")


def test_slider_and_limit_send_no_request(visit: Visit, samples: Path) -> None:
    page = visit.open()
    before = len(visit.asked)
    for value in (0, 0.5, 0.52):
        show_from(page, value)
        found = ask(visit.url, samples / "chelsea.jpg", threshold=value, top_k=10)
        assert rows(page, part=".found") == found
    page.fill("#top-k", "2")
    assert len(rows(page, part=".found")) <= 2
    assert len(visit.asked) == before


def test_slider_is_shown_when_it_counts(visit: Visit) -> None:
    page = visit.open()
    slider = page.get_by_label("Threshold for every label")
    for mode in ("calibrated", "number", "best"):
        page.check(f"[value={mode}]")
        expect(slider).to_be_visible(visible=mode == "number")


def test_sets_say_what_they_mean(visit: Visit) -> None:
    page = visit.open()
    sets = page.get_by_role("group", name="Label sets")
    expect(sets).to_contain_text("5 labels, learnt from labelled photos")
    expect(sets).to_contain_text("3 labels, scored by the meaning of their names")


def open_long_list(visit: Visit, width: int, height: int) -> Page:
    """Opens the page with more labels with maps than its height has room for."""
    visit.page.set_viewport_size({"width": width, "height": height})
    page = open_mapped(visit)
    page.get_by_label("Any words").fill(", ".join(f"label {number}" for number in range(20)))
    page.get_by_role("heading", name="your own").wait_for()
    return page


@pytest.mark.parametrize(("width", "height"), [(1280, 500), (390, 700)])
def test_map_stays_in_view_beside_the_last_label(visit: Visit, width: int, height: int) -> None:
    page = open_long_list(visit, width, height)
    last = page.locator("button.label").last
    last.click()
    expect(page.locator("#map-caption")).not_to_be_empty()
    for part in (page.locator("#map"), page.locator("#map-caption"), last):
        box = part.bounding_box()
        assert box is not None
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= height


@pytest.mark.parametrize("width", [390, 1280])
def test_photo_does_not_cover_the_request_at_the_end_of_the_page(visit: Visit, width: int) -> None:
    page = open_long_list(visit, width, 700)
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    photos, request = (
        page.locator(part).bounding_box() for part in ("#photo-side", "#request-side")
    )
    assert photos is not None
    assert request is not None
    assert photos["y"] + photos["height"] <= request["y"]


def test_focused_label_is_not_behind_the_photo_on_a_phone(visit: Visit) -> None:
    page = open_long_list(visit, 390, 700)
    page.locator("button.label").last.focus()
    for _ in range(20):
        page.keyboard.press("Shift+Tab")
        focused, photo = (page.locator(part).bounding_box() for part in (":focus", "#photo-side"))
        assert focused is not None
        assert photo is not None
        assert focused["y"] >= photo["y"] + photo["height"]


def test_maybes_are_the_three_best_labels_from_half_of_their_threshold_and_a_fifth_on(
    visit: Visit,
) -> None:
    page = visit.open()
    labels = httpx.post(
        f"{visit.url}/predict",
        files={"image": SAMPLE.read_bytes()},
        params={"top_k": 99},
    ).json()["labels"]
    most = 0
    for value in (0.25, 0.7, 0.85, 1):
        show_from(page, value)
        found = [la["label"] for la in labels if la["score"] >= value]
        maybe = [la["label"] for la in labels if value > la["score"] >= max(value / 2, 0.2)]
        assert list(rows(page, part=".found")) == found
        assert list(rows(page, part=".maybe")) == maybe[:3]
        most = max(most, len(maybe))
        headline = ", ".join(found[:3]) or "Nothing found"
        expect(page.locator("#summary")).to_have_text(
            re.compile(rf"^{headline}( and \d more)?, in")
        )
    assert most > 3


def test_nothing_found_offers_the_next_step_and_keeps_own_labels(visit: Visit) -> None:
    with httpx.Client(base_url=visit.url) as client:
        client.post("/labels", json={"name": "herd", "labels": ["yak"]}).raise_for_status()
        page = visit.open()
        page.get_by_role("checkbox", name="herd").check()
        page.get_by_label("Any words").fill("newt")
        expect(page.locator(".column h3")).to_have_text("your own + herd + trained + everyday")
        show_from(page, 1)
        expect(page.locator("#summary")).to_contain_text("Nothing found")
        assert set(rows(page, part=".own")) == {"yak", "newt"}
        page.get_by_role("button", name="Add labels of your own").click()
        expect(page.get_by_label("Any words")).to_be_focused()
        with page.expect_file_chooser():
            page.get_by_role("button", name="Choose another photo").click()
        page.get_by_role("button", name="Lower the threshold").click()
        expect(page.get_by_label("Threshold for every label")).to_be_focused()
        assert rows(page, part=".found")
        expect(page.locator(".nothing")).to_have_count(0)
        client.delete("/labels/herd").raise_for_status()


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


def test_page_says_so_when_scores_are_not_calibrated(visit: Visit) -> None:
    page = visit.open()
    expect(page.locator("#threshold-meaning")).to_contain_text("not calibrated")
    page.get_by_role("button", name="Model card").click()
    expect(page.get_by_role("dialog", name="Model card")).to_contain_text("not calibrated")


def test_bar_and_mark_show_score_and_threshold(visit: Visit) -> None:
    page = visit.open()
    show_best(page)
    for row in page.locator(".label").all():
        bar, fill, mark = (row.locator(part).bounding_box() for part in (".bar", ".fill", ".mark"))
        assert None not in (bar, fill, mark)
        score = float(row.locator(".score").inner_text())
        assert fill["width"] / bar["width"] == pytest.approx(score, abs=0.02)
        threshold = float(row.locator(".bar").get_attribute("title").split()[-1])  # type: ignore[union-attr]
        assert (mark["x"] + 1 - bar["x"]) / bar["width"] == pytest.approx(threshold, abs=0.02)
        passes = "passes" in (row.locator(".fill").get_attribute("class") or "")
        assert passes == (score >= threshold)


def test_chosen_label_sets_are_sent(visit: Visit, samples: Path) -> None:
    page = visit.open()
    show_best(page)
    page.get_by_role("checkbox", name="trained").uncheck()
    expect(page.locator(".column h3")).to_have_text("everyday")
    assert rows(page) == ask(visit.url, samples / "chelsea.jpg", label_set="everyday", top_k=10)


def test_typed_labels_are_scored_and_saved_as_a_set(visit: Visit, samples: Path) -> None:
    page = visit.open()
    page.get_by_label("Any words").fill("yak, newt,  yak")
    expect(page.locator(".column h3")).to_have_text("your own + trained + everyday")
    own = ask(visit.url, samples / "chelsea.jpg", candidate_labels=["yak", "newt"], top_k=9)
    assert own.items() <= rows(page).items(), "typed labels show whatever they score"

    page.get_by_label("Keep as set").fill("zoo")
    page.get_by_role("button", name="Keep", exact=True).click()
    expect(page.locator("#keep-status")).to_contain_text("Kept 2 labels as zoo")
    expect(page.get_by_role("checkbox", name="zoo")).to_be_checked()
    kept = httpx.get(f"{visit.url}/labels/zoo").json()
    assert [label["name"] for label in kept["labels"]] == ["yak", "newt"]

    page.get_by_label("Any words").fill("crow")
    page.get_by_label("Keep as set").fill("zoo")
    page.get_by_role("button", name="Keep", exact=True).click()
    expect(page.locator("#keep-status")).to_contain_text("a set zoo with other labels")
    page.get_by_role("button", name="Replace it").click()
    expect(page.locator("#keep-status")).to_contain_text("Kept 1 label as zoo")
    kept = httpx.get(f"{visit.url}/labels/zoo").json()
    assert [label["name"] for label in kept["labels"]] == ["crow"]


def test_text_typed_during_a_save_stays(visit: Visit) -> None:
    page = visit.open()
    words, name = page.get_by_label("Any words"), page.get_by_label("Keep as set")
    words.fill("yak, newt")
    name.fill("pond")
    take = hold(page, "**/labels")
    with page.expect_request("**/labels"):
        page.get_by_role("button", name="Keep", exact=True).click()
    words.fill("yak, newt, crow ")
    name.fill("sky")
    page.unroute("**/labels")
    take().fallback()
    expect(page.get_by_role("checkbox", name="pond")).to_be_checked()
    expect(words).to_have_value("crow ")
    expect(name).to_have_value("sky")


def test_set_ticked_during_a_save_stays_ticked(visit: Visit) -> None:
    page = visit.open()
    page.get_by_role("checkbox", name="everyday").uncheck()
    page.get_by_label("Any words").fill("yak")
    page.get_by_label("Keep as set").fill("herd")
    take = hold(page, "**/labels")
    with page.expect_request("**/labels"):
        page.get_by_role("button", name="Keep", exact=True).click()
    with page.expect_request("**/labels"):  # the sets are listed again
        take().fallback()
    page.get_by_role("checkbox", name="everyday").check()
    page.unroute("**/labels")
    take().fallback()
    expect(page.get_by_role("checkbox", name="herd")).to_be_checked()
    expect(page.get_by_role("checkbox", name="everyday")).to_be_checked()


def test_thousand_long_labels_fit_one_request(visit: Visit) -> None:
    page = visit.open()
    labels = [f"{number} {'ü' * 60}" for number in range(1000)]
    page.get_by_label("Any words").fill(", ".join(labels))
    expect(page.locator(".column h3")).to_have_text("your own + trained + everyday")
    assert visit.asked[-1]["candidate_labels"] == labels
    expect(page.get_by_role("alert")).to_be_hidden()


def test_two_label_sets_are_compared_side_by_side(visit: Visit, samples: Path) -> None:
    page = visit.open()
    show_best(page)
    page.get_by_label("Compare with").select_option("everyday")
    expect(page.locator(".column")).to_have_count(2)
    assert rows(page, 0) == ask(visit.url, samples / "chelsea.jpg", top_k=10)
    assert rows(page, 1) == ask(visit.url, samples / "chelsea.jpg", label_set="everyday", top_k=10)


def test_own_set_is_sent_first_so_that_its_thresholds_count(visit: Visit) -> None:
    body = {"labels": [{"name": "lamp", "threshold": 0.01}]}
    httpx.put(f"{visit.url}/labels/own", json=body, timeout=60).raise_for_status()
    page = visit.open()
    page.get_by_role("checkbox", name="own").check()
    expect(page.locator(".column h3")).to_have_text("own + trained + everyday")
    assert visit.asked[-1]["label_set"] == ["own", "trained", "everyday"]
    httpx.delete(f"{visit.url}/labels/own", timeout=60).raise_for_status()


def test_pressed_label_shows_its_map_until_escape(visit: Visit) -> None:
    page = open_mapped(visit)
    lamp = page.get_by_role("button", name="lamp")
    lamp.click()
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


def test_label_with_a_comma_shows_its_map(visit: Visit) -> None:
    name = "tench, Tinca tinca"
    with httpx.Client(base_url=visit.url) as client:
        client.post("/labels", json={"name": "fish", "labels": [name]}).raise_for_status()
        visit.maps = MAP
        page = visit.open()
        page.get_by_role("checkbox", name="fish").check()
        show_best(page)
        page.get_by_role("button", name=name).click()
        expect(page.locator("#map-caption")).to_contain_text(f"“{name}”")
        assert visit.asked[-1]["include"] == [name, ""]
        client.delete("/labels/fish").raise_for_status()


def test_empty_map_shows_a_message(visit: Visit) -> None:
    page = open_mapped(visit, [[0.0, 0.0], [0.0, 0.0]])
    page.get_by_role("button", name="lamp").click()
    expect(page.locator("#map-caption")).to_have_text("The map of “lamp” is empty.")
    expect(page.locator("#map")).to_be_hidden()


def press_while_held(page: Page, button: str) -> Route:
    """Clicks, and returns the held prediction request once no map is shown."""
    take = hold(page, "**/predict")
    with page.expect_request("**/predict"):
        page.get_by_role("button", name=button).click()
    expect(page.locator("#map")).to_be_hidden()
    expect(page.locator("#map-caption")).to_be_empty()
    return take()


def test_map_disappears_when_another_photo_is_chosen(visit: Visit) -> None:
    page = open_with_map(visit)
    press_while_held(page, "Sample: rocket at night").fallback()
    settle(page, visit, 3)


def test_failed_map_shows_an_error_and_removes_the_previous_map(visit: Visit) -> None:
    page = open_with_map(visit)
    held = press_while_held(page, "table")
    held.fulfill(status=500, json={"title": "The model could not be run"})
    expect(page.get_by_role("alert")).to_have_text("The model could not be run")
    expect(page.locator("#map")).to_be_hidden()
    expect(page.locator("[aria-pressed=true]")).to_have_count(0)
    page.unroute("**/predict")
    page.route("**/predict", lambda route: answer_map(route, visit))
    page.get_by_role("button", name="chair").click()
    expect(page.locator("#map-caption")).to_contain_text("“chair”")
    expect(page.get_by_role("alert")).to_be_hidden()


def open_with_map(visit: Visit) -> Page:
    """Opens the page and shows where the lamp is."""
    page = open_mapped(visit)
    page.get_by_role("button", name="lamp").click()
    expect(page.locator("#map")).to_be_visible()
    return page


def test_only_labels_of_a_head_with_maps_are_buttons(visit: Visit) -> None:
    page = open_mapped(visit)
    expect(page.locator(".column h3")).to_have_text("trained + everyday")
    assert set(page.locator("button.label .name").all_inner_texts()) == {"lamp", "table", "chair"}
    expect(page.locator("#map-hint")).to_be_visible()
    visit.maps = None
    visit.open()
    show_best(page)
    expect(page.locator("#map-hint")).to_be_hidden()
    expect(page.locator("button.label")).to_have_count(0)
    assert rows(page)


def test_photos_are_taken_from_picker_drop_and_paste(visit: Visit, tmp_path: Path) -> None:
    page = visit.open()
    show_best(page)
    seen = [rows(page)]
    for i in range(2):
        (tmp_path / f"own{i}.png").write_bytes(make_photo(i))
    page.get_by_label("Choose photos").set_input_files(
        [tmp_path / "own0.png", tmp_path / "own1.png"]
    )
    expect(page.get_by_role("button", name="own0.png", exact=True)).to_have_attribute(
        "aria-current", "true"
    )
    expect(page.get_by_role("button", name="own1.png", exact=True)).to_be_visible()
    settle(page, visit, 3)  # both
    assert rows(page) == ask(visit.url, tmp_path / "own0.png", top_k=10)
    seen.append(rows(page))
    for i, (event, field) in enumerate((("drop", "dataTransfer"), ("paste", "clipboardData"))):
        (tmp_path / "given.png").write_bytes(make_photo(5 + i))
        page.evaluate(
            """async ([event, field, bytes]) => {
                const data = new DataTransfer();
                data.items.add(new File([new Uint8Array(bytes)], `${event}.png`));
                const Kind = event === 'drop' ? DragEvent : ClipboardEvent;
                document.dispatchEvent(new Kind(event, { [field]: data, cancelable: true }));
            }""",
            [event, field, list(make_photo(5 + i))],
        )
        settle(page, visit, 4 + i)
        assert rows(page) == ask(visit.url, tmp_path / "given.png", top_k=10)
        assert rows(page) not in seen
        seen.append(rows(page))


def test_text_field_takes_pasted_text_when_a_picture_comes_with_it(visit: Visit) -> None:
    page = visit.open()
    words, photos = page.get_by_label("Any words"), page.locator("#thumbs li")
    before = photos.count()
    paste = """element => {
        const data = new DataTransfer();
        data.setData("text/plain", "yak, newt");
        data.items.add(new File([], "cells.png"));
        element.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true }));
    }"""
    words.evaluate(paste)
    expect(photos).to_have_count(before)
    page.locator("body").evaluate(paste)
    expect(photos).to_have_count(before + 1)


def test_dragged_text_is_ignored(visit: Visit) -> None:
    page = visit.open()
    is_taken = """(words, isFile) => {
        const data = new DataTransfer();
        if (isFile) data.items.add(new File([], "a.png"));
        else data.setData("text/plain", "yak");
        const init = { dataTransfer: data, bubbles: true, cancelable: true };
        const taken = !words.dispatchEvent(new DragEvent("dragover", init));
        return [taken, document.body.classList.contains("dropping")];
    }"""
    words = page.get_by_label("Any words")
    assert words.evaluate(is_taken, False) == [False, False]
    assert words.evaluate(is_taken, True) == [True, True]
    drop = """words => {
        const dataTransfer = new DataTransfer();
        dataTransfer.setData("text/plain", "yak");
        const init = { dataTransfer, bubbles: true, cancelable: true };
        return words.dispatchEvent(new DragEvent("drop", init));
    }"""
    assert words.evaluate(drop)


@pytest.mark.parametrize(
    ("name", "mode"),
    [("plain.png", "calibrated"), ("plain.png", "number"), ('it\'s; a "b", \\c.png', "best")],
)
def test_copied_curl_returns_the_answer_that_is_shown_as_json(
    visit: Visit, tmp_path: Path, name: str, mode: str
) -> None:
    page = visit.open()
    visit.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    choose(page, tmp_path / name, make_photo(3))
    page.get_by_label("Any words").fill('it\'s a "yak"; newt & co')
    expect(page.locator(".column h3")).to_have_text("your own + trained + everyday")
    show_from(page, 0.45)
    page.check(f"[value={mode}]")
    page.get_by_text("Answer as JSON").click()
    shown, curl = (copy(page, button) for button in ("Copy the answer", "Copy as curl"))
    asked = run(["bash", "-c", f"{curl} --silent"], tmp_path)
    answers = [json.loads(answer) for answer in (shown, asked)]
    for answer in answers:
        del answer["timings"], answer["request_id"]
    assert answers[0] == answers[1]
    assert answers[0]["labels"]


def copy(page: Page, button: str) -> str:
    """Presses a button that copies, and returns the copied text."""
    page.get_by_role("button", name=button).click()
    expect(page.locator("#copied")).to_contain_text(button.split()[-1], ignore_case=True)
    text: str = page.evaluate("navigator.clipboard.readText()")
    return text


@pytest.mark.parametrize("mode", ["calibrated", "number", "best"])
def test_copied_python_prints_the_shown_labels(visit: Visit, tmp_path: Path, mode: str) -> None:
    page = visit.open()
    visit.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    choose(page, tmp_path / "own.png", make_photo(3))
    settle(page, visit, 2)
    show_from(page, 0.45)
    page.check(f"[value={mode}]")
    page.fill("#top-k", "4")
    shown = rows(page, part="" if mode == "best" else ".found")
    assert shown
    printed = run([sys.executable, "-c", copy(page, "Copy as Python")], tmp_path).splitlines()
    assert sorted(printed) == sorted(f"{label}: {score:.3f}" for label, score in shown.items())


def test_first_request_is_shown_without_the_sets_that_the_service_chose(visit: Visit) -> None:
    page = visit.open()
    expect(page.get_by_role("checkbox", name="everyday")).to_be_checked()
    assert visit.asked == [{"top_k": ["1000"]}]
    assert "label_set" not in page.locator("#curl").inner_text()


def run(command: list[str], folder: Path) -> str:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_broken_photo_shows_an_error_and_the_next_one_is_labelled(
    visit: Visit, tmp_path: Path
) -> None:
    page = visit.open()
    choose(page, tmp_path / "broken.png", b"junk")
    expect(page.get_by_role("alert")).to_have_text(
        "broken.png: The file is damaged or is not an image"
    )
    page.get_by_role("button", name="Sample: rocket at night").click()
    expect(page.get_by_role("alert")).to_be_hidden()
    show_best(page)
    assert rows(page)


def test_failed_photo_shows_no_results_of_the_previous_one(visit: Visit, tmp_path: Path) -> None:
    page = open_with_map(visit)
    choose(page, tmp_path / "broken.png", b"junk")
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.locator("#summary")).to_have_text("No labels.")
    for place in ("#results", "#map-caption"):
        expect(page.locator(place)).to_be_empty()
    for place in ("#map", "#request-side"):
        expect(page.locator(place)).to_be_hidden()


def test_deleted_photo_shows_an_error(visit: Visit, tmp_path: Path) -> None:
    page = visit.open()
    choose(page, tmp_path / "own.png", make_photo())
    settle(page, visit, 2)
    (tmp_path / "own.png").unlink()
    page.get_by_role("button", name="own.png", exact=True).click()
    expect(page.get_by_role("alert")).to_have_text(
        "own.png: The photo cannot be read: choose it again."
    )
    page.get_by_role("button", name="Sample: cat").click()
    expect(page.get_by_role("alert")).to_be_hidden()


@pytest.mark.parametrize("is_reached", [True, False])
def test_unavailable_sample_shows_an_error_and_keeps_the_photo(
    visit: Visit, *, is_reached: bool
) -> None:
    page = visit.open()
    before = rows(page)
    page.route(
        "**/page/samples/rocket.jpg",
        lambda route: (
            route.fulfill(response=route.fetch(url=f"{visit.url}/page/samples/none.jpg"))
            if is_reached
            else route.abort()
        ),
    )
    page.get_by_role("button", name="Sample: rocket at night").click()
    message = "There is no such path" if is_reached else "The service cannot be reached."
    expect(page.get_by_role("alert")).to_contain_text(message)
    expect(page.locator("#thumbs [aria-current]")).to_have_accessible_name("Sample: cat")
    assert rows(page) == before
    assert len(visit.asked) == 1


def test_page_opened_before_the_service_was_ready_works_with_the_next_photo(
    visit: Visit, samples: Path
) -> None:
    page = visit.page
    problem = {"status": 503, "title": "The service is not ready", "code": "not_ready"}
    page.route("**/info", lambda route: route.fulfill(status=503, json=problem), times=1)
    page.goto(visit.url)
    expect(page.get_by_role("alert")).to_have_text("The service is not ready")
    page.get_by_role("button", name="Sample: rocket at night").click()
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.get_by_role("checkbox", name="trained")).to_be_checked()
    expect(page.get_by_label("Any words")).to_be_visible()
    assert rows(page) == ask(visit.url, samples / "rocket.jpg")


def test_only_a_failed_connection_is_called_unreachable(visit: Visit) -> None:
    page = visit.open()
    alert = page.get_by_role("alert")
    page.route("**/predict", lambda route: route.fulfill(body="<p>Sign in</p>"), times=1)
    page.get_by_role("checkbox", name="everyday").uncheck()
    expect(alert).to_contain_text("The answer is not JSON")
    page.route("**/predict", lambda route: route.abort(), times=1)
    page.get_by_role("checkbox", name="everyday").check()
    expect(alert).to_have_text("The service cannot be reached.")


def test_typed_key_is_sent_when_the_service_asks_for_one(visit: Visit) -> None:
    page = visit.page
    problem = {"status": 401, "title": "An API key is needed", "code": "unauthorised"}
    page.route(
        lambda url: url.endswith(("/info", "/labels", "/predict")),
        lambda route: (
            route.fallback()
            if route.request.headers.get("authorization") == "Bearer sesame"
            else route.fulfill(status=401, json=problem)
        ),
    )
    page.goto(visit.url)
    alert = page.get_by_role("alert")
    expect(alert).to_have_text("An API key is needed: type it into the field “API key”.")
    field = page.get_by_role("textbox", name="API key")
    expect(field).to_be_focused()
    page.keyboard.type("barley")
    page.keyboard.press("Enter")
    expect(alert).to_have_text("An API key is needed: type another one into the field “API key”.")
    expect(field).to_have_attribute("aria-invalid", "true")
    field.fill("sesame")
    page.keyboard.press("Enter")
    expect(alert).to_be_hidden()
    expect(field).to_be_hidden()
    page.get_by_role("button", name="Sample: cat").click()
    show_best(page)
    expect(page.locator(".label").first).to_be_visible()
    assert "sesame" not in page.content()
    assert "$ML_DECODER_API_KEY" in page.locator("#curl").inner_text()


def test_page_retries_after_429(visit: Visit) -> None:
    refused: list[str] = []

    def refuse_once(route: Any) -> None:
        if refused:
            route.fallback()
            return
        refused.append(route.request.url)
        problem = {"status": 429, "title": "The service is busy", "code": "queue_full"}
        route.fulfill(status=429, headers={"Retry-After": "1"}, json=problem)

    visit.page.route("**/predict", refuse_once)
    page = visit.open()
    show_best(page)
    assert refused
    assert rows(page)


def test_long_wait_for_a_busy_service_is_named(visit: Visit) -> None:
    page = visit.open()
    problem = {"status": 429, "title": "Too many requests", "detail": "As in Retry-After."}
    busy = {"status": 429, "headers": {"Retry-After": "30"}, "json": problem}
    page.route("**/predict", lambda route: route.fulfill(**busy))
    page.get_by_role("checkbox", name="everyday").uncheck()
    expect(page.get_by_role("alert")).to_have_text("Too many requests: Try again in 30 s.")


def test_model_card_opens_and_closes(visit: Visit) -> None:
    page = visit.open()
    page.get_by_role("button", name="Model card").click()
    card = page.get_by_role("dialog", name="Model card")
    expect(card).to_contain_text("Apache-2.0")
    expect(card.get_by_role("row", name="dog 0.60")).to_be_visible()
    page.keyboard.press("Escape")
    expect(card).to_be_hidden()


def test_focus_stays_in_the_column_of_the_pressed_label(visit: Visit) -> None:
    page = open_mapped(visit)
    page.get_by_label("Compare with").select_option("everyday")
    expect(page.locator(".column")).to_have_count(2)
    lamps = page.get_by_role("button", name="lamp")
    for column in (1, 0):
        lamps.nth(column).focus()
        page.keyboard.press("Space")
        expect(page.locator("#map")).to_be_visible()
        expect(lamps.nth(column)).to_have_attribute("aria-pressed", "true")
        expect(lamps.nth(column)).to_be_focused()


def test_docs_show_the_routes_and_load_nothing_from_other_hosts(visit: Visit) -> None:
    page = visit.page
    page.goto(f"{visit.url}/docs")
    expect(page.locator("#operations-predict-predict_predict_post")).to_be_visible()
