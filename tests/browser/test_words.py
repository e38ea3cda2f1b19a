"""Tags in the browser's language, and their parents."""

import pytest
from playwright.sync_api import Page, expect

from tests.browser import actions
from tests.browser.conftest import Visit
from tests.support.photos import make_photo

CAT = {"name": "cat", "aliases": ["kitty"], "parents": ["mammal", "animal"]}
ANIMALS = [
    {**CAT, "translations": {"de": "Katze", "fr": "chat"}},
    {"name": "animal", "translations": {"de": "Tier"}},
    {"name": "birthday cake", "translations": {"de": "Geburtstagskuchen"}},
]


@pytest.fixture
def page(visit: Visit) -> Page:
    """A sample of which all labels of a set with words are tags."""
    actions.register(visit, "animals", *ANIMALS)
    page = visit.open()
    for name in ("animals", "everyday", "trained"):
        actions.find_box(page, name).set_checked(name == "animals")
    actions.show_from(page, 0)
    return page


@pytest.mark.parametrize("visit", ["de-AT"], indirect=True)
def test_tags_are_in_the_browsers_language_or_a_chosen_one(visit: Visit, page: Page) -> None:
    cat, entry = page.locator(".chip[title^=cat]"), page.locator("#view-rows th")
    expect(cat).to_have_attribute("title", "cat — Tier > mammal\nCopy “Katze”")
    actions.type_labels(page, "Geburtstagskuchen")
    expect(page.locator("#resolved")).to_have_text("Geburtstagskuchen: birthday cake")
    expect(page.locator("#curl")).to_contain_text("--form-string lang=de")
    assert "parents" not in (page.locator("#request").text_content() or "")
    actions.assert_accessible_at(visit, "german", {320: "light", 1280: "dark"})
    actions.open_tab(page, "Labels")
    page.get_by_role("button", name="animals", exact=True).click()
    page.get_by_label("Search").fill("kitty")
    expect(entry).to_have_text("Katzecatalso kittyTier > mammal")
    languages = page.get_by_label("Language of tags")
    expect(languages.locator("option")).to_have_text(["Deutsch", "English (names)", "français"])
    languages.select_option("en")
    expect(entry).to_have_text("catalso kittyanimal > mammal")
    expect(cat).to_have_attribute("title", "cat — animal > mammal\nCopy “cat”")
    page.reload()
    expect(languages).to_have_value("en")


@pytest.mark.parametrize("visit", ["de"], indirect=True)
def test_filter_has_parents_and_corrections_and_files_keep_labels(page: Page) -> None:
    actions.choose(page, *(actions.make_payload(f"{i}.png", make_photo(i)) for i in range(2)))
    buttons, tiles = page.locator("#filter-tags button"), page.locator("#tiles > li")
    expect(buttons).to_have_text(["Geburtstagskuchen 2", "Katze 2", "Tier 2", "mammal 2"])
    for photo, tag in ((0, "Tier"), (0, "Katze"), (1, "Tier")):
        tiles.nth(photo).get_by_role("button", name=f"Cross out {tag}").click()
    expect(page.locator("#filter-tags .parent")).to_have_text(["Tier 1", "mammal 1"])
    for text in ("TIER", "animal"):
        page.get_by_label("Find a tag").fill(text)
        page.keyboard.press("Enter")
        expect(page.locator("#tiles > li:not([hidden]) .name")).to_have_text("1.png")
        page.get_by_role("button", name="Show all", exact=True).click()
    page.get_by_label("Select 0.png").check()
    page.get_by_label("Add a tag").fill("katze")
    page.keyboard.press("Enter")
    expect(tiles.first.locator(".tag").first).to_have_text("Katze")
    found = {(row["label"], row["translation"]) for row in actions.download_rows(page)}
    assert found == {("cat", "Katze"), ("birthday cake", "Geburtstagskuchen")}
