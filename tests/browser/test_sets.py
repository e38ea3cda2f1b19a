"""Label sets on the page: listed, opened, typed, saved and deleted."""

from typing import Any

import httpx2 as httpx
import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.actions import (
    CAT,
    answer,
    ask,
    assert_accessible,
    assert_accessible_at,
    choose_sample,
    expect_sets,
    find_box,
    get_box,
    hold,
    keep_as,
    open_tab,
    read_labels,
    register,
    rows,
    show_best,
    type_labels,
)
from tests.browser.conftest import Visit


def list_names(visit: Visit) -> list[str]:
    return [labels["name"] for labels in read_labels(visit)["label_sets"]]


def find_set(page: Page, name: str) -> Locator:
    """Returns the row of a set on the tab Labels."""
    return page.locator("#sets > li").filter(has=page.get_by_role("button", name=name, exact=True))


def type_set(page: Page, name: str, labels: str) -> None:
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("textbox", name="Labels").fill(labels)


def save(page: Page) -> None:
    page.get_by_role("button", name="Save set").click()


def test_chosen_label_sets_say_what_they_mean_and_are_sent(visit: Visit) -> None:
    page = visit.open()
    show_best(page)
    find_box(page, "trained").uncheck()
    expect_sets(page, "everyday")
    assert rows(page) == ask(visit.url, CAT, label_set="everyday", top_k=10)
    open_tab(page, "Labels")
    expect(find_set(page, "trained")).to_contain_text("5 labels, learnt from labelled photos")
    expect(find_set(page, "everyday")).to_contain_text("3 labels, comes with the model")
    expect(page.locator("#sets-none")).to_be_visible()
    expect(page.locator(".languages:not([hidden])")).to_have_count(0)


def test_typed_labels_are_scored_and_saved_as_a_set(visit: Visit) -> None:
    page = visit.open()
    type_labels(page, "yak, newt,  yak")
    own = ask(visit.url, CAT, candidate_labels=["yak", "newt"], top_k=9)
    assert own.items() <= rows(page).items(), "typed labels show whatever they score"

    keep_as(page, "zoo")
    expect(page.locator("#new-set-status")).to_have_text(
        "Saved 2 labels as zoo. The set is ticked on Try."
    )
    expect(page.locator("#sets-none")).to_be_hidden()
    assert [label["name"] for label in read_labels(visit, "/zoo")["labels"]] == ["yak", "newt"]

    type_set(page, "zoo", "crow\nemu, crow")
    expect(page.locator("#new-set-count")).to_have_text("2 labels")
    save(page)
    expect(page.locator("#new-set-status")).to_contain_text("a set zoo with other labels")
    page.get_by_role("button", name="Replace it").click()
    expect(page.locator("#new-set-status")).to_contain_text("Saved 2 labels as zoo")
    expect(page.get_by_role("button", name="Save set")).to_be_focused()
    assert [label["name"] for label in read_labels(visit, "/zoo")["labels"]] == ["crow", "emu"]

    page.locator("#new-set-look").click()
    expect(page.get_by_role("tab", name="Try")).to_be_focused()
    expect(page.get_by_label("Your own words")).to_have_value("")
    expect_sets(page, "zoo", "trained", "everyday")


def test_new_set_takes_the_words_of_try_and_says_what_is_missing(visit: Visit) -> None:
    page = visit.open()
    open_tab(page, "Labels")
    take = page.get_by_role("button", name="Add the words of Try")
    take.click()
    expect(page.locator("#new-set-status")).to_have_text("There are no words on Try yet.")
    save(page)
    expect(page.locator("#new-set-status")).to_have_text("Give the set a name.")
    expect(page.get_by_label("Name", exact=True)).to_be_focused()
    page.keyboard.type("zoo")
    page.keyboard.press("Enter")
    expect(page.locator("#new-set-status")).to_have_text("Type some labels first.")
    expect(page.get_by_role("textbox", name="Labels")).to_be_focused()
    page.keyboard.type("crow")
    open_tab(page, "Try")
    type_labels(page, "yak, newt")
    open_tab(page, "Labels")
    take.click()
    expect(page.get_by_role("textbox", name="Labels")).to_have_value("crow\nyak\nnewt")
    type_set(page, "my zoo", "yak")
    save(page)
    expect(page.locator("#new-set-status")).to_contain_text("letters, digits and . _ -")
    expect(page.get_by_role("textbox", name="Labels")).to_have_value("yak")


def test_model_without_a_text_encoder_offers_no_words_for_a_set(visit: Visit) -> None:
    def answer_without(route: Route) -> None:
        response = route.fetch()
        info = response.json()
        info["open_head"]["encodes_text"] = False
        route.fulfill(response=response, json=info)

    page = visit.page
    page.route("**/info", answer_without)
    page.goto(f"{visit.url}/#labels")
    expect(page.locator("#new-set-cannot")).to_be_visible()
    expect(page.locator("#new-set-form")).to_be_hidden()


def test_text_typed_and_set_ticked_during_a_save_stay(visit: Visit) -> None:
    page = visit.open()
    find_box(page, "everyday").uncheck()
    open_tab(page, "Labels")
    type_set(page, "pond", "yak, newt")
    take = hold(page, "**/labels")
    with page.expect_request("**/labels"):
        save(page)
    type_set(page, "sky", "yak, newt, crow ")
    with page.expect_request("**/labels"):  # the sets are listed again
        take().fallback()
    open_tab(page, "Try")
    find_box(page, "everyday").check()
    page.unroute("**/labels")
    take().fallback()
    for box in ("pond", "everyday"):
        expect(find_box(page, box)).to_be_checked()
    expect(page.locator("#new-set-words")).to_have_value("crow ")
    expect(page.locator("#new-set-name")).to_have_value("sky")


def test_labels_of_a_set_are_searched_and_lead_to_teaching_and_thresholds(visit: Visit) -> None:
    register(visit, "herd", "yak", {"name": "newt", "threshold": 0.25, "prompt": "a wet newt"})
    page = visit.open()
    open_tab(page, "Labels")
    page.get_by_role("button", name="herd", exact=True).click()
    expect(page.locator("#view-title")).to_be_focused()
    expect(page.locator("#view-rows tr")).to_have_count(2)
    newt = page.get_by_role("row", name="newt")
    expect(newt).to_contain_text("“a wet newt”0.250")
    page.get_by_role("button", name="Set the threshold of newt").click()
    expect(page.get_by_role("heading", name="Thresholds")).to_be_focused()
    expect(page.locator("#calibrate-label")).to_have_value("newt")
    page.get_by_role("button", name="Teach newt from photos").click()
    expect(page.get_by_role("heading", name="Teach a label")).to_be_focused()
    expect(page.locator("#teach-set")).to_have_value("herd")
    expect(page.locator("#teach-label")).to_have_value("newt")

    page.get_by_label("Search").fill("YAK")
    expect(page.locator("#view-count")).to_have_text("1 of 2 labels")
    page.get_by_role("button", name="New set").click()
    type_set(page, "herd", "yak, yakutian horse")
    save(page)
    page.get_by_role("button", name="Replace it").click()
    expect(page.locator("#new-set-status")).to_contain_text("Saved 2 labels as herd")
    page.get_by_role("button", name="herd", exact=True).click()
    expect(page.locator("#view-rows tr")).to_have_count(2)
    press_delete(page, "herd")
    expect_deleted(page, "herd")
    expect(page.locator("#set-view")).to_be_hidden()


def test_set_of_50_000_labels_with_categories_is_searched(visit: Visit) -> None:
    counts = {"general": 49_998, "rating": 2}
    big = {"name": "tags", "version": "1", "origin": "model", "read_only": True}
    big |= {"num_labels": 50_000, "category_counts": counts}
    kinds = ["rating"] * 2 + ["general"] * 49_998
    shared = {"threshold": 0.04, "calibrated": True}
    labels = [{**shared, "name": f"tag {i}", "category": kind} for i, kind in enumerate(kinds)]
    page = visit.page
    page.route("**/labels", lambda route: route.fulfill(json={"label_sets": [big]}))
    page.route("**/labels/tags", lambda route: route.fulfill(json={**big, "labels": labels}))
    page.goto(f"{visit.url}/#labels")
    expect(find_set(page, "tags")).to_contain_text("general 49,998 rating 2")
    page.get_by_role("button", name="tags", exact=True).click()
    expect(page.locator("#view-count")).to_have_text("50,000 labels, the first 200 shown")
    page.get_by_role("button", name="Show 200 more").click()
    expect(page.get_by_role("rowheader", name="tag 200")).to_be_focused()
    expect(page.locator("#view-rows tr")).to_have_count(400)
    page.get_by_label("Search").fill("tag 4999")
    expect(page.locator("#view-count")).to_have_text("11 of 50,000 labels")
    page.get_by_label("Search").fill("")
    page.get_by_label("Category").select_option("rating")
    expect(page.locator("#view-count")).to_have_text("2 of 50,000 labels")
    expect(page.locator("#view-more")).to_be_hidden()
    assert_accessible(visit, "view", 1280)


def test_thousand_long_labels_fit_one_request(visit: Visit) -> None:
    page = visit.open()
    labels = [f"{number} {'ü' * 60}" for number in range(1000)]
    type_labels(page, ", ".join(labels))
    assert visit.asked[-1]["candidate_labels"] == labels
    expect(page.get_by_role("alert")).to_be_hidden()


def test_own_set_is_sent_first_so_that_its_thresholds_count(visit: Visit) -> None:
    register(visit, "own", {"name": "lamp", "threshold": 0.01})
    page = visit.open()
    find_box(page, "own").check()
    expect_sets(page, "own", "trained", "everyday")
    assert visit.asked[-1]["label_set"] == ["own", "trained", "everyday"]


@pytest.fixture
def page(visit: Visit) -> Page:
    """The tab Labels of a service with two stored sets."""
    register(visit, "herd", "yak")
    register(visit, "zoo", "newt")
    page = visit.open()
    open_tab(page, "Labels")
    return page


def tick(page: Page, name: str, *sets: str) -> None:
    """Ticks a set on the tab Try and comes back."""
    open_tab(page, "Try")
    find_box(page, name).check()
    expect_sets(page, *sets)
    open_tab(page, "Labels")


def press_delete(page: Page, name: str, answer: str = "Delete") -> None:
    page.get_by_role("button", name=f"Delete {name}").click()
    page.get_by_role("dialog", name=f"Delete {name}?").get_by_role("button", name=answer).click()


def expect_deleted(page: Page, name: str) -> None:
    expect(page.locator("#sets-status")).to_have_text(f"{name} is deleted.")
    expect(find_set(page, name)).to_have_count(0)


def test_confirmed_deletion_removes_the_set_and_labels_the_photo_again(
    page: Page, visit: Visit
) -> None:
    buttons = page.locator("#sets .small")
    expect(buttons).to_have_count(2)  # others cannot be deleted
    for button, name in zip(buttons.all(), ("herd", "zoo"), strict=True):
        expect(button).to_have_accessible_name(f"Delete {name}")
    tick(page, "zoo", "zoo", "trained", "everyday")
    open_tab(page, "Try")
    page.get_by_label("Compare with").select_option("zoo")
    expect(page.locator(".column")).to_have_count(2)
    open_tab(page, "Labels")
    press_delete(page, "zoo")
    expect_deleted(page, "zoo")
    open_tab(page, "Try")
    expect(page.locator(".column")).to_have_count(1)
    expect_sets(page, "trained", "everyday")
    expect(page.get_by_label("Compare with")).to_have_value("")
    expect(page.locator("#compare option")).to_have_text(["none", "trained", "everyday", "herd"])
    assert "zoo" not in list_names(visit)
    expect(page.get_by_role("alert")).to_be_hidden()


def test_unconfirmed_deletion_deletes_nothing(page: Page, visit: Visit) -> None:
    press_delete(page, "herd")  # not an answer to the next dialog
    expect_deleted(page, "herd")
    assert len(visit.asked) == 1, "an unused set needs no prediction"
    for refuse in (
        lambda: page.get_by_role("button", name="Cancel").click(),
        lambda: page.keyboard.press("Escape"),
    ):
        page.get_by_role("button", name="Delete zoo").click()
        says = "Its 1 label will be deleted for everyone"
        expect(page.get_by_role("dialog")).to_contain_text(says)
        refuse()
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(page.get_by_role("button", name="Delete zoo")).to_be_focused()
    expect(page.locator("#sets-status")).to_be_empty()
    assert "zoo" in list_names(visit)


def test_set_changed_by_another_client_is_deleted_only_on_a_second_try(
    page: Page, visit: Visit
) -> None:
    register(visit, "zoo", "newt", "crow", "yak")
    press_delete(page, "zoo")
    expect(page.locator("#sets-status")).to_have_text(
        "zoo was changed meanwhile and not deleted. Delete again to delete the changed set."
    )
    expect(find_set(page, "zoo")).to_contain_text("3 labels")
    assert "zoo" in list_names(visit)
    press_delete(page, "zoo")
    expect_deleted(page, "zoo")
    assert "zoo" not in list_names(visit)


def test_sets_deleted_by_another_client_disappear(page: Page, visit: Visit) -> None:
    tick(page, "zoo", "zoo", "trained", "everyday")
    tick(page, "herd", "herd", "zoo", "trained", "everyday")
    for name in ("zoo", "herd"):
        httpx.delete(f"{visit.url}/labels/{name}", timeout=60)
    press_delete(page, "zoo")
    expect_deleted(page, "zoo")
    open_tab(page, "Try")
    expect_sets(page, "trained", "everyday")
    choose_sample(page, "rocket at night")
    assert rows(page)
    expect(page.get_by_role("alert")).to_be_hidden()


def test_refused_deletion_shows_an_error_and_keeps_the_set(page: Page) -> None:
    title = "This label set is read-only"
    answer(page, "**/labels/zoo", 409, title)
    press_delete(page, "zoo")
    expect(page.locator("#sets-status")).to_have_text(title)
    expect(page.get_by_role("button", name="Delete zoo")).to_be_focused()
    press_delete(page, "zoo")
    expect_deleted(page, "zoo")


def test_sets_are_deleted_with_the_keyboard_and_focus_moves_on(page: Page) -> None:
    page.get_by_role("button", name="Delete herd").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    expect_deleted(page, "herd")
    expect(page.get_by_role("button", name="Delete zoo")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect_deleted(page, "zoo")
    expect(page.get_by_role("button", name="New set")).to_be_focused()


def test_stored_sets_and_the_dialog_fit_a_phone_and_pass_axe(visit: Visit) -> None:
    name = "w" * 100
    register(visit, name, "yak")
    visit.page.set_viewport_size({"width": 320, "height": 700})
    page = visit.open()
    open_tab(page, "Labels")
    button = page.get_by_role("button", name=f"Delete {name}")
    button.scroll_into_view_if_needed()
    box = get_box(button)
    assert 0 <= box["x"] <= 320 - box["width"]
    assert box["height"] >= 24, "large enough for a finger"
    assert_accessible(visit, "sets", 320)
    button.click()
    question = page.get_by_role("dialog")
    assert question.evaluate("element => element.scrollWidth <= element.clientWidth")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert_accessible(visit, f"delete-{scheme}", 320)


def test_labels_say_what_they_learnt_from_and_how_good_they_are(visit: Visit) -> None:
    fit: dict[str, Any] = {"photos": 526, "positive": 41, "negative": 3, "precise": None}
    fit |= {"text_ap": 0.43, "learnt_ap": 0.58, "precision": 0.71, "recall": 0.55}
    poor: dict[str, Any] = dict.fromkeys(("text_ap", "precision", "recall"))
    poor |= {"photos": 9, "positive": 5, "negative": 0, "learnt_ap": 0.5}
    poor |= {"precise": {"threshold": 0.8, "recall": 0.2}}
    examples = {"positive": 2, "negative": 1, "separation": {"meaning": "clearly told apart"}}
    shared = {"threshold": 0.5, "calibrated": True}
    labels = [{"name": "yak", "fit": fit, "examples": examples}, {"name": "newt", "fit": poor}]
    herd = {"name": "herd", "num_labels": 2, "read_only": False, "version": "1", "origin": "store"}
    herd |= {"labels": [shared | label for label in labels]}
    page = visit.page
    page.route("**/labels", lambda route: route.fulfill(json={"label_sets": [herd]}))
    page.route("**/labels/herd", lambda route: route.fulfill(json=herd))
    page.goto(f"{visit.url}/#labels")
    page.get_by_role("button", name="herd", exact=True).click()
    facts = """learnt from 41 of 526 tagged photos, and from 3 of which you deleted it
average precision 58 % (43 % by its name alone)
at its threshold 71 % right, finds 55 %
90 % right: not reached
then from 3 photos: clearly told apart
learnt from 5 of 9 tagged photos
average precision 50 %
too few photos to measure its threshold
90 % right: from 0.800, finds 20 %"""
    expect(page.locator("#view-rows th span")).to_have_text(facts.splitlines())
    assert_accessible_at(visit, "fits", {320: "light", 1280: "dark"})
