"""A label taught on the page from photos."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from service.bundle.reader import Bundle
from tests.browser.actions import (
    answer,
    ask,
    assert_accessible_at,
    choose,
    expect_sets,
    find_box,
    open_tab,
    read_labels,
    register,
)
from tests.browser.conftest import Visit
from tests.browser.test_looks import pick, press, tab_to
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
