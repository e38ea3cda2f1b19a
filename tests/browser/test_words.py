"""Tags in the browser's language, and their parents."""

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.actions import (
    assert_accessible_at,
    choose,
    download,
    download_rows,
    expect_sets,
    find_box,
    make_payload,
    open_tab,
    register,
    show_from,
    type_labels,
    wait_for_answer,
)
from tests.browser.conftest import Visit
from tests.support.photos import make_photo

ANIMALS: list[dict[str, Any]] = [
    {"name": "cat", "aliases": ["kitty"], "parents": ["mammal", "animal"]},
    {"name": "owl", "parents": ["animal"], "translations": {"de": "Eule"}},
    {"name": "animal", "translations": {"de": "Tier"}},
    {"name": "birthday cake"},
]
ANIMALS[0]["translations"] = {"de": "Katze", "fr": "chat"}
ANIMALS[3]["translations"] = {"de": "Geburtstagskuchen"}


@pytest.fixture
def locale() -> str:
    return "de-AT"


@pytest.fixture
def page(visit: Visit) -> Page:
    """The tags of a sample by a set with words, all found, in the browser's German."""
    register(visit, "animals", *ANIMALS)
    page = visit.open()
    for name in ("everyday", "trained"):
        find_box(page, name).uncheck()
    find_box(page, "animals").check()
    show_from(page, 0)
    expect_sets(page, "animals")
    return page


def test_tags_are_in_the_language_of_the_browser_until_another_is_chosen(
    visit: Visit, page: Page
) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    cat = page.locator(".chip").filter(has_text="Katze")
    expect(cat).to_have_attribute("title", "cat — Tier > mammal\nCopy “Katze”")
    expect(cat).to_have_attribute("lang", "de")
    expect(page.locator(".label .name[title^=owl]")).to_have_text("Eule")
    cat.click()
    assert page.evaluate("navigator.clipboard.readText()") == "Katze"
    type_labels(page, "Geburtstagskuchen")
    expect(page.locator("#resolved")).to_have_text("Geburtstagskuchen: birthday cake")
    assert visit.asked[-1]["candidate_labels"] == ["Geburtstagskuchen"]
    assert visit.asked[-1]["lang"] == ["de"]
    expect(page.locator("#curl")).to_contain_text("--form-string lang=de")
    assert "parent" not in (page.locator("#request").text_content() or "")
    page.get_by_label("Your own words").fill("")
    languages = page.get_by_label("Language of tags")
    expect(languages.locator("option")).to_have_text(["Deutsch", "English (names)", "français"])
    assert_accessible_at(visit, "german", {320: "light", 1280: "dark"})
    languages.select_option("en")
    expect(page.locator(".chip[title^=cat]")).to_have_text("cat")
    expect(page.locator(".chip[title^=cat]")).to_have_attribute("title", re.compile("animal > mam"))
    assert visit.asked[-1]["lang"] == ["en"]
    page.reload()
    expect(languages).to_have_value("en")


def test_filter_has_parents_and_corrections_and_files_keep_labels(page: Page) -> None:
    choose(page, *(make_payload(f"own{i}.png", make_photo(i)) for i in range(2)))
    expect(page.locator("#downloads-status")).to_have_text("2 of 2 photos tagged")
    buttons, quiet = page.locator("#filter-tags button"), page.locator("#filter-tags .parent")
    expect(buttons).to_have_text(["Eule 2", "Geburtstagskuchen 2", "Katze 2", "Tier 2", "mammal 2"])
    expect(quiet).to_have_text("mammal 2")
    for photo, tags in ((0, ("Tier", "Katze", "Eule")), (1, ("Tier",))):
        for tag in tags:
            tile = page.locator("#tiles > li").nth(photo)
            tile.get_by_role("button", name=f"Cross out {tag}", exact=True).click()
    crossed = page.locator("#tiles .crossed .tag").first
    expect(crossed).to_have_text("Tier")
    expect(crossed).to_have_attribute("title", re.compile("^animal\nTake back that Tier"))
    expect(quiet).to_have_text(["Tier 1", "mammal 1"])
    for text in ("TIER", "animal"):
        page.get_by_label("Find a tag").fill(text)
        page.keyboard.press("Enter")
        expect(page.locator("#tiles > li:not([hidden]) .name")).to_have_text("own1.png")
        page.get_by_role("button", name="Show all", exact=True).click()
    page.get_by_label("Select own0.png").check()
    page.get_by_label("Add a tag").fill("katze")
    page.keyboard.press("Enter")
    found = {(row["label"], row["translation"]) for row in download_rows(page)}
    assert found == {("cat", "Katze"), ("birthday cake", "Geburtstagskuchen")}
    labels = json.loads(download(page, "JSON")[1])[0]["labels"]
    assert {"cat": "Katze"}.items() <= {
        each["label"]: each["translation"] for each in labels
    }.items()
    kept = page.evaluate("localStorage.getItem('ml-decoder-corrections')")
    assert all(f'["{label}"' in kept for label in ("animal", "cat", "owl"))


def test_list_of_labels_has_their_words(page: Page) -> None:
    open_tab(page, "Labels")
    page.get_by_role("button", name="animals", exact=True).click()
    page.get_by_label("Search").fill("kitty")
    expect(page.locator("#view-rows tr")).to_have_count(1)
    row = page.locator("#view-rows th")
    expect(row).to_have_text("Katzecatalso kittyTier > mammal")
    page.get_by_label("Language of tags").select_option("en")
    expect(row).to_have_text("catalso kittyanimal > mammal")
    wait_for_answer(page)
