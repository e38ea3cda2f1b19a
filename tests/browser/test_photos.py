"""Photos on the page: taken, labelled one or a hundred at once, downloaded, and those that fail."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.actions import (
    SAMPLES,
    answer,
    ask,
    assert_accessible_at,
    choose,
    choose_sample,
    demand_key,
    download,
    download_rows,
    expect_sets,
    find_box,
    find_row,
    hold,
    make_payload,
    rows,
    settle,
    show_best,
    show_from,
    type_labels,
)
from tests.browser.conftest import MAP, Visit
from tests.support.photos import encode_picture, make_photo, make_picture

DAMAGED = "The file is damaged or is not an image"
WATCH = """
    window.live = new Set();
    const [make, revoke, send] = [URL.createObjectURL, URL.revokeObjectURL, window.fetch];
    URL.createObjectURL = (blob) => { const url = make(blob); live.add(url); return url; };
    URL.revokeObjectURL = (url) => { live.delete(url); revoke(url); };
    [window.running, window.most] = [0, 0];
    window.fetch = async (...request) => {
        window.most = Math.max(window.most, ++window.running);
        try { return await send(...request); } finally { window.running -= 1; }
    };
"""
PAIR = [make_payload(f"own{i}.png", make_photo(i)) for i in range(2)]


def expect_tagged(page: Page, status: str) -> None:
    expect(page.locator("#downloads-status")).to_have_text(status)


def expect_shown(page: Page, name: str) -> None:
    """Waits until Try shows a photo."""
    expect(page.locator("#photo")).to_have_accessible_name(name)


def open_many(page: Page) -> None:
    page.get_by_role("tab", name="Many photos").click()


def press_photo(page: Page, name: str) -> None:
    """Opens a photo of the grid on Try."""
    open_many(page)
    page.get_by_role("button", name=name, exact=True).click()


def expect_tiles(page: Page, *names: str) -> None:
    """Waits until these photos are shown and no other."""
    expect(page.locator("#tiles > li:not([hidden]) .name")).to_have_text(names)


def press_tag(page: Page, tag: str) -> None:
    """Presses a button of the filter."""
    page.locator("#filter-tags button").filter(has_text=re.compile(rf"^{tag} \d+$")).click()


@pytest.fixture
def own(visit: Visit, tmp_path: Path) -> list[Path]:
    """Two photos and a broken one between them, which are on the page and labelled."""
    page, files = visit.open(), [tmp_path / f"own{i}.png" for i in range(3)]
    for file, content in zip(files, (make_photo(1), b"junk", make_photo(2)), strict=True):
        file.write_bytes(content)
    choose(page, *files)
    expect_tagged(page, "2 of 3 photos tagged, 1 failed")
    return files


def test_several_photos_are_a_grid_and_two_files(visit: Visit, own: list[Path]) -> None:
    page = visit.page
    for i in (0, 2):
        tile, tags = page.locator("#tiles > li").nth(i), list(ask(visit.url, own[i]))
        expect(tile.locator(".name")).to_have_text(f"own{i}.png")
        more = [f"+{len(tags) - 4}"] if len(tags) > 4 else []
        expect(tile.locator(".tags li")).to_have_text([*tags[:4], *more])
    answers = json.loads(download(page, "JSON")[1])
    assert [answer["photo"] for answer in answers] == ["own0.png", "own1.png", "own2.png"]
    assert answers[1] == {"photo": "own1.png", "problem": DAMAGED}
    found = {label["label"]: round(label["score"], 3) for label in answers[2]["labels"]}
    assert found == ask(visit.url, own[2])
    table = download_rows(page)
    scores = {row["label"]: row["score"] for row in table if row["photo"] == "own2.png"}
    assert {label: round(float(score), 3) for label, score in scores.items()} == found
    assert [row["error"] for row in table if row["photo"] == "own1.png"] == [DAMAGED]


def test_csv_has_a_byte_order_mark_typed_labels_valid_quotes_and_no_formula(visit: Visit) -> None:
    page = visit.open()
    name = '-1, "b"\n\x1b[.png'
    choose(page, make_payload(name, make_photo(1)))
    type_labels(page, "=1+1")
    show_from(page, 0)
    expect_tagged(page, "1 of 1 photo tagged")
    open_many(page)
    expect(page.locator("#tiles .tags li").first).to_have_text("=1+1")
    expect(page.locator("#tiles .own")).to_have_text("=1+1")
    expect(page.locator("#basis")).to_contain_text("trained, everyday and 1 own word")
    table = download_rows(page)
    assert {row["photo"] for row in table} == {'\'-1, "b"\n\\x1b[.png'}
    assert "'=1+1" in {row["label"] for row in table}


@pytest.mark.usefixtures("own")
def test_broken_photo_is_named_and_can_be_removed(visit: Visit) -> None:
    page = visit.page
    expect(page.locator("#tiles [data-state=failed] .state")).to_have_text(DAMAGED)
    press_photo(page, "own1.png")
    expect(page.get_by_role("alert")).to_contain_text("own1.png: The file is damaged")
    open_many(page)
    page.get_by_role("button", name="Remove own1.png").click()
    expect(page.get_by_role("button", name="own2.png", exact=True)).to_be_focused()
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator("#photo")).to_be_hidden()
    for i in (0, 2):
        page.get_by_role("button", name=f"Remove own{i}.png").click()
    expect(page.locator("#downloads")).to_be_hidden()
    expect(page.get_by_label("Add photos")).to_be_focused()
    assert_accessible_at(visit, "removed", {320: "dark", 1280: "light"})


def test_filter_shows_photos_with_all_pressed_tags(visit: Visit, own: list[Path]) -> None:
    page = visit.page
    first, second = (list(ask(visit.url, own[i])) for i in (0, 2))
    tag = next(tag for tag in first if tag not in second)
    press_tag(page, "failed")
    expect_tiles(page, "own1.png")
    assert [row["photo"] for row in download_rows(page)] == ["own1.png"]
    assert_accessible_at(visit, "filter", {320: "light", 1280: "dark"})
    page.get_by_role("button", name="Show all", exact=True).click()
    expect_tiles(page, "own0.png", "own1.png", "own2.png")
    page.get_by_label("Find a tag").fill(tag.upper())
    page.keyboard.press("Enter")
    expect(page.locator("#filter-tags [aria-pressed=true]")).to_have_text(f"{tag} 1")
    expect_tiles(page, "own0.png")
    others = page.locator("#filter-tags [aria-pressed=false]").all_inner_texts()
    assert {text.rsplit(" ", 1)[0] for text in others} <= {*first} - {tag}


def test_selected_photos_are_copied_downloaded_removed_and_brought_back(
    visit: Visit, own: list[Path]
) -> None:
    page = visit.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    boxes = page.locator("#tiles input")
    boxes.nth(0).check()
    expect(page.locator("#scope")).to_have_text("1 selected")
    page.get_by_role("button", name="Copy tags").click()
    expect(page.locator("#toast-text")).to_have_text("Copied the tags of 1 photo.")
    assert page.evaluate("navigator.clipboard.readText()") == ", ".join(ask(visit.url, own[0]))
    boxes.nth(2).click(modifiers=["Shift"])
    expect(page.locator("#scope")).to_have_text("3 selected")
    expect(page.get_by_label("Select all")).to_be_checked()
    page.get_by_label("Select own0.png").uncheck()
    assert {row["photo"] for row in download_rows(page)} == {"own1.png", "own2.png"}
    press_tag(page, "failed")
    expect(page.locator("#scope")).to_have_text("2 selected, 1 not shown")
    page.get_by_role("button", name="Remove", exact=True).click()
    expect(page.locator("#toast-text")).to_have_text("Removed 2 photos.")
    page.get_by_role("button", name="Show all", exact=True).click()
    expect_tiles(page, "own0.png")
    page.get_by_role("button", name="Undo").click()
    expect_tiles(page, "own0.png", "own1.png", "own2.png")
    expect_tagged(page, "2 of 3 photos tagged, 1 failed")


@pytest.mark.usefixtures("own")
def test_arrow_keys_go_from_tile_to_tile_and_a_photo_leads_back_to_the_grid(visit: Visit) -> None:
    page = visit.page
    page.get_by_role("button", name="own0.png", exact=True).focus()
    for key, name in (("ArrowRight", 1), ("End", 2), ("ArrowLeft", 1), ("Home", 0)):
        page.keyboard.press(key)
        expect(page.get_by_role("button", name=f"own{name}.png", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    expect_shown(page, "own0.png")
    page.get_by_role("button", name="All 3 photos").click()
    expect(page.get_by_role("button", name="own0.png", exact=True)).to_be_focused()


def test_photos_of_a_folder_are_taken_and_other_files_are_counted(
    visit: Visit, tmp_path: Path
) -> None:
    page, folder = visit.open(), tmp_path / "trip"
    (folder / "day").mkdir(parents=True)
    (folder / "a.png").write_bytes(make_photo(1))
    (folder / "day" / "b.png").write_bytes(make_photo(2))
    for i in range(5):
        (folder / f"notes{i}.txt").write_text("none")
    (folder / "c.CR2").write_bytes(b"II*\0")
    (folder / "d.heic").write_bytes(b"junk")
    page.locator("#folder").set_input_files(folder)
    skipped = page.locator("#skipped")
    expect(skipped).to_contain_text("6 other files skipped: ")
    expect(skipped).to_contain_text("RAW, export it as JPEG (trip/c.CR2)")
    expect(skipped).to_contain_text(re.compile(r"no photo \((trip/notes\d\.txt,? ){3}and 2 more\)"))
    expect_tagged(page, "2 of 3 photos tagged, 1 failed")
    names = ["trip/a.png", "trip/d.heic", "trip/day/b.png"]
    shown = page.locator("#tiles .name")
    titles = "all => all.map(name => name.title)"
    assert sorted(shown.evaluate_all(titles)) == names
    data = {"items": [], "files": [str(folder)], "dragOperationsMask": 1}
    devtools = page.context.new_cdp_session(page)
    for kind in ("dragEnter", "dragOver", "drop"):
        event = {"type": kind, "x": 600, "y": 600, "data": data}
        devtools.send("Input.dispatchDragEvent", event)
    expect_tagged(page, "4 of 6 photos tagged, 2 failed")
    assert sorted(shown.evaluate_all(titles)) == sorted(2 * names)


def test_hundred_photos_have_thumbnails_progress_and_four_requests_at_a_time(visit: Visit) -> None:
    visit.page.add_init_script(WATCH)
    page = visit.open()
    page.evaluate("window.most = 0")
    contents = [encode_picture(make_picture(seed, 800, 600), "JPEG") for seed in range(3)]
    choose(page, *(make_payload(f"{i}.jpg", contents[i % 3]) for i in range(101)))
    expect(page.locator("#progress")).to_be_visible()
    expect_tagged(page, "101 of 101 photos tagged")
    expect(page.locator("#progress")).to_be_hidden()
    assert page.evaluate("window.most") == 4
    expect(page.locator("#tiles .blank")).to_have_count(0)
    heights = "images => images.map(image => image.naturalHeight)"
    assert page.locator("#tiles img").evaluate_all(heights) == [320] * 101
    assert page.evaluate("live.size") == 1
    page.get_by_role("button", name="Remove all", exact=True).click()
    expect(page.locator("#tiles > li")).to_have_count(0)
    expect(page.get_by_label("Add photos")).to_be_focused()
    expect(page.locator("#downloads")).to_be_hidden()
    assert page.evaluate("live.size") == 1


def test_photos_wait_until_the_service_is_not_busy(visit: Visit) -> None:
    page = visit.open()
    busy: dict[str, Any] = {"times": 5, "retry_after": 0.01, "photo": "own1.png"}
    answer(page, "**/predict", 429, "The service is busy", **busy)
    choose(page, *PAIR)
    expect_tagged(page, "2 of 2 photos tagged")
    expect(page.get_by_role("alert")).to_be_hidden()


def test_rest_is_tagged_on_request_after_the_service_was_unreachable(visit: Visit) -> None:
    page, lost = visit.open(), [True]

    def lose_one(route: Route) -> None:
        if b"own1.png" in (route.request.post_data_buffer or b"") and lost:
            lost.clear()
            route.abort()
        else:
            route.fallback()

    page.route("**/predict", lose_one)
    choose(page, *PAIR)
    expect(page.get_by_role("alert")).to_have_text("The service cannot be reached.")
    expect_tagged(page, "1 of 2 photos tagged")
    expect(page.get_by_role("button", name="Download CSV")).to_be_disabled()
    page.get_by_role("button", name="Tag the rest").click()
    expect_tagged(page, "2 of 2 photos tagged")
    expect(page.get_by_role("button", name="Tag the rest")).to_be_hidden()
    expect(page.get_by_role("alert")).to_be_hidden()


def test_photos_are_taken_from_picker_drop_and_paste(visit: Visit, tmp_path: Path) -> None:
    page = visit.open()
    show_best(page)
    seen = [rows(page)]

    def check(asked: int, content: bytes) -> None:
        settle(page, visit, asked)
        (tmp_path / "given.png").write_bytes(content)
        shown = rows(page)
        assert shown == ask(visit.url, tmp_path / "given.png", top_k=10)
        assert shown not in seen
        seen.append(shown)

    choose(page, make_payload("own0.png", make_photo(0)))
    expect_shown(page, "own0.png")
    check(2, make_photo(0))
    for i, (event, field) in enumerate((("drop", "dataTransfer"), ("paste", "clipboardData"))):
        page.evaluate(
            """async ([event, field, bytes]) => {
                const data = new DataTransfer();
                data.items.add(new File([new Uint8Array(bytes)], `${event}.png`));
                const Kind = event === 'drop' ? DragEvent : ClipboardEvent;
                document.dispatchEvent(new Kind(event, { [field]: data, cancelable: true }));
            }""",
            [event, field, list(make_photo(5 + i))],
        )
        check(3 + i, make_photo(5 + i))


def test_text_field_takes_pasted_text_with_a_picture_and_dragged_text(visit: Visit) -> None:
    page = visit.open()
    words, photos = page.get_by_label("Your own words"), page.locator("#tiles > li")
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
    drag = """(words, [event, isFile]) => {
        const data = new DataTransfer();
        if (isFile) data.items.add(new File([], "a.png"));
        else data.setData("text/plain", "yak");
        const init = { dataTransfer: data, bubbles: true, cancelable: true };
        const taken = !words.dispatchEvent(new DragEvent(event, init));
        return [taken, document.body.classList.contains("dropping")];
    }"""
    assert words.evaluate(drag, ["dragover", False]) == [False, False]
    assert words.evaluate(drag, ["dragover", True]) == [True, True]
    assert words.evaluate(drag, ["drop", False])[0] is False


def test_broken_photo_shows_an_error_and_no_results_of_the_previous_one(visit: Visit) -> None:
    visit.maps = MAP
    page = visit.open()
    show_best(page)
    find_row(page, "lamp").click()
    expect(page.locator("#map")).to_be_visible()
    choose(page, make_payload("broken.png", b"junk"))
    expect(page.get_by_role("alert")).to_have_text(f"broken.png: {DAMAGED}")
    expect(page.locator("#summary")).to_have_text("No tags.")
    for place in ("#results", "#map-caption"):
        expect(page.locator(place)).to_be_empty()
    for place in ("#map", "#request"):
        expect(page.locator(place)).to_be_hidden()
    choose_sample(page, "rocket at night")
    show_best(page)
    assert rows(page)
    expect(page.get_by_role("alert")).to_be_hidden()


def test_photo_that_failed_before_the_first_answer_stays_failed(visit: Visit) -> None:
    page = visit.page
    page.goto(visit.url)
    choose(page, make_payload("broken.png", b"junk"))
    expect(page.locator("#unseen")).to_have_text("broken.png")
    open_many(page)
    expect(page.get_by_role("alert")).to_be_hidden()
    page.get_by_label("Add photos").set_input_files(PAIR[:1])
    expect_tagged(page, "1 of 2 photos tagged, 1 failed")


def test_photo_removed_while_it_is_asked_for_leaves_no_other_waiting(visit: Visit) -> None:
    page = visit.open()
    choose(page, *PAIR)
    expect_tagged(page, "2 of 2 photos tagged")
    take = hold(page, "**/predict")
    press_photo(page, "own0.png")
    take()
    open_many(page)
    page.get_by_label("Add photos").set_input_files(make_payload("own2.png", make_photo(2)))
    take()
    press_photo(page, "own0.png")
    take()
    page.unroute("**/predict")
    open_many(page)
    page.get_by_role("button", name="Remove own0.png").click()
    expect_tagged(page, "2 of 2 photos tagged")


def test_deleted_photo_and_missing_sample_show_an_error_and_keep_the_photo(
    visit: Visit, tmp_path: Path
) -> None:
    page = visit.open()
    before = rows(page)
    (tmp_path / "own.png").write_bytes(make_photo())
    choose(page, tmp_path / "own.png")
    settle(page, visit, 2)
    (tmp_path / "own.png").unlink()
    press_photo(page, "own.png")
    expect(page.get_by_role("alert")).to_have_text(
        "own.png: The photo cannot be read: choose it again"
    )
    choose_sample(page, "cat")
    expect(page.get_by_role("alert")).to_be_hidden()
    page.route(
        "**/page/samples/rocket.jpg",
        lambda route: route.fulfill(response=route.fetch(url=f"{visit.url}/page/samples/none.jpg")),
    )
    page.get_by_role("button", name="Sample: rocket at night").click()
    expect(page.get_by_role("alert")).to_contain_text("There is no such path")
    expect_shown(page, "Sample: cat")
    assert rows(page) == before
    assert len(visit.asked) == 3


def test_page_opened_before_the_service_was_ready_works_with_the_next_photo(visit: Visit) -> None:
    page = visit.page
    answer(page, "**/info", 503, "The service is not ready", code="not_ready")
    page.goto(visit.url)
    expect(page.get_by_role("alert")).to_have_text("The service is not ready")
    choose_sample(page, "rocket at night")
    expect(page.get_by_role("alert")).to_be_hidden()
    page.locator("#options summary").click()
    expect(find_box(page, "trained")).to_be_checked()
    expect(page.get_by_label("Your own words")).to_be_visible()
    assert rows(page) == ask(visit.url, SAMPLES / "rocket.jpg")


def test_only_a_failed_connection_is_called_unreachable(visit: Visit) -> None:
    page = visit.open()
    alert = page.get_by_role("alert")
    page.route("**/predict", lambda route: route.fulfill(body="<p>Sign in</p>"), times=1)
    find_box(page, "everyday").uncheck()
    expect(alert).to_contain_text("The answer is not JSON")
    page.route("**/predict", lambda route: route.abort(), times=1)
    find_box(page, "everyday").check()
    expect(alert).to_have_text("The service cannot be reached.")


def test_busy_service_is_asked_again_and_a_long_wait_is_named(visit: Visit) -> None:
    answer(visit.page, "**/predict", 429, "The service is busy", retry_after=0.01)
    page = visit.open()
    expect_sets(page, "trained", "everyday")
    more: dict[str, Any] = {"detail": "As in Retry-After.", "retry_after": 30}
    answer(page, "**/predict", 429, "Too many requests", **more)
    find_box(page, "everyday").uncheck()
    expect(page.get_by_role("alert")).to_have_text("Too many requests: Try again in 30 s.")


def test_typed_key_is_sent_when_the_service_asks_for_one(visit: Visit) -> None:
    page = visit.page
    for path in ("info", "labels", "predict"):
        demand_key(page, f"**/{path}", 401, "An API key is needed", code="unauthorised")
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
    page.locator("#options summary").click()
    show_best(page)
    expect(page.locator(".label").first).to_be_visible()
    assert "sesame" not in page.content()
    assert "$ML_DECODER_API_KEY" in (page.locator("#curl").text_content() or "")
