"""A label taught on the page from photos, and from tags that the user corrects on Many photos."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from service.bundle.reader import Bundle
from tests.browser.actions import (
    answer,
    ask,
    assert_accessible_at,
    choose,
    demand_key,
    download_rows,
    expect_sets,
    find_box,
    open_tab,
    read_labels,
    register,
)
from tests.browser.conftest import Visit
from tests.browser.test_looks import pick, press, tab_to
from tests.browser.test_photos import expect_tagged, press_photo
from tests.e2e.server_process import ServerProcess, serve_command
from tests.support.photos import write_photos


@pytest.fixture(scope="module")
def address(learning_bundle: Bundle) -> Iterator[str]:
    """The URL of a service that can learn from photos."""
    command = serve_command(learning_bundle, "--label-store", "memory")
    with ServerProcess(*command) as server, server.open_client() as client:
        yield str(client.base_url).rstrip("/")


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    return write_photos(tmp_path, 7)


def teach(page: Page, name: str, label: str, positive: list[Path], negative: list[Path]) -> None:
    open_tab(page, "Labels")
    page.locator("#teach-set").fill(name)
    page.locator("#teach-label").fill(label)
    page.locator("#teach-with").set_input_files(positive)
    page.locator("#teach-without").set_input_files(negative)
    counts = f"To send: {len(positive)} of it, {len(negative)} without it"
    expect(page.locator("#teach-counts")).to_have_text(counts)
    page.locator("#teach-send").click()


def expect_learnt(page: Page, text: str) -> None:
    expect(page.locator("#teach-status")).to_contain_text(f"has learnt from {text}")


def test_label_is_taught_and_scored_on_the_next_photo(visit: Visit, photos: list[Path]) -> None:
    page = visit.open()
    teach(page, "desk", "our mug", photos[:2], [])
    expect_learnt(page, "2 photos of it and 0 without it. It is")
    score = ask(visit.url, photos[0], label_set="desk", top_k=1)["our mug"]
    page.get_by_text("Score of each photo").first.click()
    expect(page.locator("#teach-scores li", has_text="00.png")).to_contain_text(
        re.compile(rf"{score:.3f}\d? of it, (not )?found")
    )
    plot = page.locator("#teach-strip").get_by_role("img", name="2 of it from")
    expect(plot.locator(".of-it")).to_have_count(2)
    expect(page.locator("#teach-advice")).not_to_be_empty()
    expect(page.locator("#teach-counts")).to_be_empty()
    expect(page.locator("#sets > li", has_text="desk")).to_contain_text("1 learnt from photos")
    page.locator("#teach-look").click()
    expect(page.get_by_role("tab", name="Try")).to_be_focused()
    expect(find_box(page, "desk")).to_be_checked()

    choose(page, photos[6])
    expect_sets(page, "desk", "trained", "everyday")
    row = page.locator(".label", has_text="our mug")
    score = ask(visit.url, photos[6], label_set="desk", top_k=1)["our mug"]
    expect(row.locator(".score")).to_have_text(f"{score:.3f}")
    expect(row.locator(".spoken")).to_contain_text("learnt from photos")

    teach(page, "desk", "our mug", photos[1:5], photos[5:])
    expect_learnt(
        page, "5 photos of it and 2 without it (1 left out: the same as another, or nearly so)"
    )
    expect(page.locator("#teach-advice")).to_contain_text("little in common")
    page.get_by_role("button", name="Set its threshold").click()
    expect(page.get_by_role("heading", name="Thresholds")).to_be_focused()
    expect(page.locator("#calibrate-label")).to_have_value("our mug")
    expect(page.locator("#calibrate-counts")).to_be_empty()
    expect(page.locator("#calibrate-learnt")).to_be_visible()


@pytest.mark.parametrize("code", ["no_background", "invalid_image"])
def test_refused_photos_stay_to_be_sent_again(visit: Visit, photos: list[Path], code: str) -> None:
    page = visit.open()
    problem = {"code": code, "detail": "Export it with --background."}
    answer(page, "**/examples?*", 409, "This model cannot learn", **problem)
    teach(page, "desk", "our mug", photos[:1], photos[1:3])
    expect(page.locator("#teach-status")).to_have_text(
        "This model cannot learn: Export it with --background."
    )
    expect(page.locator("#teach-counts")).to_have_text("To send: 1 of it, 2 without it")
    page.locator("#teach-send").click()
    expect_learnt(page, "1 photo of it and 2 without it")
    assert read_labels(visit, "/desk")["labels"][0]["name"] == "our mug"


def test_photos_over_the_limit_of_a_body_go_in_several_requests(
    visit: Visit, photos: list[Path]
) -> None:
    for path in photos[:3]:
        path.write_bytes(path.read_bytes() + bytes(9_000_000))
    page = visit.open()
    teach(page, "desk", "our mug", photos[:3], photos[3:4])
    expect_learnt(page, "3 photos of it and 1 without it")
    expect(page.locator("#teach-scores")).to_contain_text("03.png")


def test_unusable_photo_is_named(visit: Visit, photos: list[Path]) -> None:
    page = visit.open()
    photos[2].write_bytes(b"no image")
    teach(page, "desk", "our mug", photos[:4], [])
    expect(page.locator("#teach-status")).to_contain_text("02.png: The file is damaged")
    expect(page.locator("#teach-counts")).to_have_text("To send: 4 of it, 0 without it")
    page.get_by_role("button", name="Remove 02.png").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Remove 03.png")).to_be_focused()
    expect(page.locator("#teach-counts")).to_have_text("To send: 3 of it, 0 without it")
    page.locator("#teach-send").click()
    expect_learnt(page, "3 photos of it")


def test_page_says_what_is_missing_before_it_sends(visit: Visit, photos: list[Path]) -> None:
    page = visit.open()
    open_tab(page, "Labels")
    for field, hint in (("teach-label", "Name the label."), ("teach-set", "Give the set a name.")):
        page.locator("#teach-send").click()
        expect(page.locator("#teach-status")).to_have_text(hint)
        expect(page.locator(f"#{field}")).to_be_focused()
        page.keyboard.type("mug")
    page.locator("#teach-send").click()
    expect(page.locator("#teach-status")).to_have_text("Choose photos of it first.")
    page.locator("#teach-with").set_input_files(photos)
    expect(page.get_by_role("list", name="Chosen photos of it").get_by_role("img")).to_have_count(7)
    page.get_by_role("button", name="Remove photos").click()
    expect(page.locator("#teach-with")).to_be_focused()
    expect(page.locator("#teach-counts")).to_be_empty()
    assert not any(found["name"] == "mug" for found in read_labels(visit)["label_sets"])


def test_label_is_taught_with_the_keyboard_and_passes_axe(visit: Visit, photos: list[Path]) -> None:
    register(visit, "herd", "yak")
    page = visit.open()
    open_tab(page, "Labels")
    for field, text in (("#teach-label", "newt"), ("#teach-set", "herd")):
        tab_to(page, field)
        page.keyboard.type(text)
    pick(page, "#teach-with", *photos[:2])
    press(page, "#teach-send")
    expect_learnt(page, "2 photos of it")
    expect(page.locator("#teach-send")).to_be_focused()
    assert_accessible_at(visit, "teach", {320: "dark", 1280: "light"})


def show(page: Page, photos: list[Path]) -> None:
    """Chooses several photos and waits for their tags."""
    choose(page, *photos)
    expect_tagged(page, f"{len(photos)} of {len(photos)} photos tagged")


def read_tags(page: Page, photos: list[Path]) -> list[set[str]]:
    """The tags of each photo, by the CSV file."""
    rows = download_rows(page)
    return [{row["label"] for row in rows if row["photo"] == path.name} for path in photos]


def press_on(page: Page, photo: int, action: str) -> None:
    page.locator("#tiles > li").nth(photo).get_by_role("button", name=action).click()


def add(page: Page, photo: int, text: str) -> None:
    box = page.get_by_label(f"Select 0{photo}.png")
    box.check()
    page.get_by_label("Add a tag to the selected photos").fill(text)
    page.keyboard.press("Enter")
    box.uncheck()
    tag = text.split(",")[-1].strip().lower()
    expect(page.locator("#tiles > li").nth(photo)).to_contain_text(tag)


def learn(page: Page, status: str) -> None:
    press(page, "#corrections-learn")
    expect(page.locator("#corrections-status")).to_have_text(re.compile(status))


def test_corrections_count_in_tags_filter_and_files_also_after_a_reload(
    visit: Visit, photos: list[Path]
) -> None:
    page = visit.open()
    show(page, photos)
    before, right = read_tags(page, photos), read_tags(page, photos)
    press_on(page, 0, "Cross out lamp")
    expect(page.get_by_role("button", name="Take back that lamp")).to_be_focused()
    add(page, 1, "yak,  DOG")  # a known label as it is spelled
    right[0] -= {"lamp"}
    right[1] |= {"yak", "dog"}
    assert read_tags(page, photos) == right
    page.get_by_label("Find a tag").fill("yak")
    page.keyboard.press("Enter")
    expect(page.locator("#tiles > li:not([hidden]) .name")).to_have_text("01.png")
    assert_accessible_at(visit, "corrections", {320: "dark", 1280: "light"})
    page.reload()
    show(page, photos)
    assert read_tags(page, photos) == right
    press_on(page, 0, "Take back that lamp")
    press_on(page, 1, "Cross out yak")  # which the user added: nothing is left of it
    assert read_tags(page, photos) == [before[0], right[1] - {"yak"}, *before[2:]]
    page.get_by_role("button", name="Forget them").click()
    assert read_tags(page, photos) == before


def test_corrections_are_learnt_and_crossed_out_tags_stay_away(
    visit: Visit, photos: list[Path]
) -> None:
    register(visit, "zoo", "yak")
    page = visit.open()
    find_box(page, "zoo").check()
    show(page, photos)
    before = read_tags(page, photos)
    for photo, tag in ((0, "lamp"), (1, "lamp"), (0, "car")):
        press_on(page, photo, f"Cross out {tag}")
    for photo, tag in ((2, "yak"), (3, "yak"), (3, "newt")):
        add(page, photo, tag)
    learn(page, r"^Learnt 5 corrections of 3 labels; \d+ other tags? changed\. “car” is a trained")
    expect(page.locator("#corrections-forget")).to_be_focused()
    sets = ["corrections", "zoo", "trained", "everyday"]
    expect(page.locator("#basis")).to_contain_text(", ".join(sets))
    learnt = {
        (name, label["name"], label["examples"]["positive"], label["examples"]["negative"])
        for name in sets[:2]
        for label in read_labels(visit, f"/{name}")["labels"]
    }
    lessons = {("corrections", "lamp", 0, 2), ("corrections", "newt", 1, 0), ("zoo", "yak", 2, 0)}
    assert learnt == lessons
    now = [set(ask(visit.url, path, label_set=sets)) for path in photos]
    changes = [now[0] - {"lamp", "car"}, now[1] - {"lamp"}, now[2] | {"yak"}]
    assert read_tags(page, photos) == [*changes, now[3] | {"yak", "newt"}, *now[4:]] != before
    press_photo(page, "00.png")
    expect_sets(page, *sets)
    expect(page.locator("#results")).not_to_contain_text("lamp")
    page.reload()
    show(page, photos)
    expect(page.locator("#basis")).to_contain_text("corrections, trained, everyday")
    assert "lamp" not in read_tags(page, photos)[0]


def test_no_correction_is_lost_if_the_service_does_not_learn(
    visit: Visit, photos: list[Path]
) -> None:
    page = visit.open()
    show(page, photos)
    press_on(page, 0, "Cross out lamp")
    press_on(page, 1, "Cross out lamp")
    problem: dict[str, Any] = {"code": "no_background", "detail": "Export it with --background."}
    answer(page, "**/examples?*", 409, "This model cannot learn", **problem)
    learn(page, "^“lamp” is not learnt: This model cannot learn: Export it with --background.$")
    demand_key(page, "**/examples?*", 403, "This API key may not do that", code="forbidden")
    learn(page, "^This API key may not do that$")
    expect(page.get_by_role("textbox", name="API key")).to_be_focused()
    page.keyboard.type("sesame")
    page.keyboard.press("Enter")
    photos[1].unlink()
    learn(page, "^Learnt 1 correction of 1 label; .*“lamp” is not learnt from 01.png: The photo")
    expect(page.locator("#corrections-number")).to_have_text("1")
