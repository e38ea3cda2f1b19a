"""Several photos on the page: a grid, files of their labels, broken ones, a hundred at once."""

import csv
import io
import json
from pathlib import Path
from typing import Any

from playwright.sync_api import FilePayload, Page, Route, expect

from tests.browser.conftest import Visit
from tests.browser.test_page import ask, show_from
from tests.support.photos import encode_picture, make_photo, make_picture

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


def take_photos(page: Page, tmp_path: Path) -> None:
    """Chooses two photos and a broken one, and waits until they are labelled."""
    for i, content in enumerate((make_photo(1), b"junk", make_photo(2))):
        (tmp_path / f"own{i}.png").write_bytes(content)
    files = [tmp_path / f"own{i}.png" for i in range(3)]
    page.get_by_label("Choose photos").set_input_files(files)
    expect(page.locator("#downloads-status")).to_have_text("2 of 3 photos labelled, 1 failed")


def test_several_photos_are_a_grid_with_names_and_labels(visit: Visit, tmp_path: Path) -> None:
    page = visit.open()
    take_photos(page, tmp_path)
    for i in (0, 2):
        found = ask(visit.url, tmp_path / f"own{i}.png")
        tile = page.locator("#thumbs li").nth(i)
        expect(tile.locator("span")).to_have_text(f"own{i}.png")
        expect(tile.locator("p")).to_have_text(", ".join(list(found)[:3]))
    page.get_by_label("Any words").fill("yak")
    show_from(page, 0)
    wanted = ask(visit.url, tmp_path / "own2.png", top_k=9, candidate_labels=["yak"])
    expect(page.locator("#downloads-status")).to_have_text("2 of 3 photos labelled, 1 failed")
    assert wanted
    with page.expect_download() as event:
        page.get_by_role("button", name="Download CSV").click()
    table = list(csv.DictReader(event.value.path().read_text().splitlines()))
    own2 = {
        row["label"]: round(float(row["score"]), 3) for row in table if row["photo"] == "own2.png"
    }
    assert wanted.items() <= own2.items()


def test_downloads_have_the_found_labels_and_the_broken_photo(visit: Visit, tmp_path: Path) -> None:
    page = visit.open()
    take_photos(page, tmp_path)
    with page.expect_download() as event:
        page.get_by_role("button", name="Download JSON").click()
    answers = json.loads(event.value.path().read_text())
    assert [answer["photo"] for answer in answers] == ["own0.png", "own1.png", "own2.png"]
    assert answers[1] == {
        "photo": "own1.png",
        "problem": "The file is damaged or is not an image",
    }
    found = {label["label"]: round(label["score"], 3) for label in answers[2]["labels"]}
    assert found == ask(visit.url, tmp_path / "own2.png")
    with page.expect_download() as event:
        page.get_by_role("button", name="Download CSV").click()
    table = list(csv.DictReader(event.value.path().read_text().splitlines()))
    assert event.value.suggested_filename == "labels.csv"
    assert {
        r["label"]: round(float(r["score"]), 3) for r in table if r["photo"] == "own2.png"
    } == found
    failures = [row["error"] for row in table if row["photo"] == "own1.png"]
    assert failures == ["The file is damaged or is not an image"]


def test_csv_has_valid_quotes_and_no_formula(visit: Visit) -> None:
    page = visit.open()
    name = '-1, "b"\nc.png'
    photo = {"name": name, "mimeType": "image/png", "buffer": make_photo(1)}
    page.get_by_label("Choose photos").set_input_files(photo)  # type: ignore[arg-type]
    page.get_by_label("Any words").fill("=1+1")
    page.get_by_role("heading", name="your own + trained + everyday").wait_for()
    show_from(page, 0)
    expect(page.locator("#downloads-status")).to_have_text("1 of 1 photos labelled")
    with page.expect_download() as event:
        page.get_by_role("button", name="Download CSV").click()
    content = event.value.path().read_text()
    rows = list(csv.DictReader(io.StringIO(content, newline="")))
    assert {row["photo"] for row in rows} == {f"'{name}"}
    assert "'=1+1" in {row["label"] for row in rows}


def test_broken_photo_is_named_and_can_be_removed(visit: Visit, tmp_path: Path) -> None:
    page = visit.open()
    take_photos(page, tmp_path)
    broken = page.locator("#thumbs li").nth(1)
    expect(broken.locator(".problem")).to_have_text("The file is damaged or is not an image")
    page.get_by_role("button", name="own1.png", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("own1.png: The file is damaged")
    page.get_by_role("button", name="Remove own1.png").click()
    expect(page.get_by_role("button", name="own2.png", exact=True)).to_be_focused()
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator("#thumbs [aria-current]")).to_have_accessible_name("own2.png")
    for i in (0, 2):
        page.get_by_role("button", name=f"Remove own{i}.png").click()
    expect(page.locator("#thumbs [aria-current]")).to_have_accessible_name("Sample: cat")
    expect(page.locator("#downloads")).to_be_hidden()


def make_payload(name: str, content: bytes) -> FilePayload:
    return {"name": name, "mimeType": "image/png", "buffer": content}


def test_hundred_photos_have_thumbnails_progress_and_two_requests_at_a_time(visit: Visit) -> None:
    visit.page.add_init_script(WATCH)
    page = visit.open()
    page.evaluate("window.most = 0")
    contents = [encode_picture(make_picture(seed, 800, 600), "JPEG") for seed in range(3)]
    photos = [make_payload(f"{i}.jpg", contents[i % 3]) for i in range(101)]
    page.get_by_label("Choose photos").set_input_files(photos)
    expect(page.locator("#progress")).to_be_visible()
    expect(page.locator("#downloads-status")).to_have_text("101 of 101 photos labelled")
    expect(page.locator("#progress")).to_be_hidden()
    assert page.evaluate("window.most") == 2
    expect(page.locator("#thumbs .blank")).to_have_count(0)
    heights = "images => images.slice(0, 101).map(image => image.naturalHeight)"
    assert page.locator("#thumbs img").evaluate_all(heights) == [160] * 101
    assert page.evaluate("live.size") == 1
    page.get_by_role("button", name="Remove all").click()
    expect(page.locator("#thumbs li")).to_have_count(4)
    expect(page.get_by_role("button", name="Sample: cat")).to_be_focused()
    expect(page.locator("#thumbs [aria-current]")).to_have_accessible_name("Sample: cat")
    expect(page.locator("#downloads")).to_be_hidden()
    assert page.evaluate("live.size") == 1


def refuse(page: Page, times: int, **answer: Any) -> None:
    """Refuses the first predictions of `own1.png`; without an answer, it closes the connection."""

    def handle(route: Route) -> None:
        nonlocal times
        if b"own1.png" not in (route.request.post_data_buffer or b"") or times == 0:
            route.fallback()
            return
        times -= 1
        if answer:
            route.fulfill(**answer)
        else:
            route.abort()

    page.route("**/predict", handle)


PAIR = [make_payload(f"own{i}.png", make_photo(i)) for i in range(2)]


def test_photos_wait_until_the_service_is_not_busy(visit: Visit) -> None:
    page = visit.open()
    problem = {"status": 429, "title": "The service is busy", "code": "queue_full"}
    refuse(page, 5, status=429, headers={"Retry-After": "0.01"}, json=problem)
    page.get_by_label("Choose photos").set_input_files(PAIR)
    expect(page.locator("#downloads-status")).to_have_text("2 of 2 photos labelled")
    expect(page.get_by_role("alert")).to_be_hidden()


def test_photos_go_on_with_the_next_choice_after_the_service_was_unreachable(visit: Visit) -> None:
    page = visit.open()
    refuse(page, 1)
    page.get_by_label("Choose photos").set_input_files(PAIR)
    expect(page.get_by_role("alert")).to_have_text("The service cannot be reached.")
    expect(page.locator("#downloads-status")).to_have_text("1 of 2 photos labelled")
    expect(page.get_by_role("button", name="Download CSV")).to_be_disabled()
    page.get_by_role("button", name="own0.png", exact=True).click()
    expect(page.locator("#downloads-status")).to_have_text("2 of 2 photos labelled")
    expect(page.get_by_role("alert")).to_be_hidden()
