"""Label sets on the page: chosen, typed, kept and deleted."""

import httpx2 as httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.actions import (
    CAT,
    answer,
    ask,
    assert_accessible,
    demand_key,
    expect_sets,
    find_box,
    get_box,
    hold,
    keep_as,
    read_labels,
    register,
    rows,
    show_best,
    type_labels,
)
from tests.browser.conftest import Visit


def list_names(visit: Visit) -> list[str]:
    return [found["name"] for found in read_labels(visit)["label_sets"]]


def test_chosen_label_sets_say_what_they_mean_and_are_sent(visit: Visit) -> None:
    page = visit.open()
    sets = page.get_by_role("group", name="Label sets")
    expect(sets).to_contain_text("5 labels, learnt from labelled photos")
    expect(sets).to_contain_text("3 labels, scored by the meaning of their names")
    show_best(page)
    find_box(page, "trained").uncheck()
    expect_sets(page, "everyday")
    assert rows(page) == ask(visit.url, CAT, label_set="everyday", top_k=10)


def test_typed_labels_are_scored_and_saved_as_a_set(visit: Visit) -> None:
    page = visit.open()
    type_labels(page, "yak, newt,  yak")
    own = ask(visit.url, CAT, candidate_labels=["yak", "newt"], top_k=9)
    assert own.items() <= rows(page).items(), "typed labels show whatever they score"

    keep_as(page, "zoo")
    expect(page.locator("#keep-status")).to_contain_text("Kept 2 labels as zoo")
    expect(find_box(page, "zoo")).to_be_checked()
    assert [label["name"] for label in read_labels(visit, "/zoo")["labels"]] == ["yak", "newt"]

    page.get_by_label("Any words").fill("crow")
    keep_as(page, "zoo")
    expect(page.locator("#keep-status")).to_contain_text("a set zoo with other labels")
    page.get_by_role("button", name="Replace it").click()
    expect(page.locator("#keep-status")).to_contain_text("Kept 1 label as zoo")
    assert [label["name"] for label in read_labels(visit, "/zoo")["labels"]] == ["crow"]


def test_text_typed_and_set_ticked_during_a_save_stay(visit: Visit) -> None:
    page = visit.open()
    find_box(page, "everyday").uncheck()
    words, name = page.get_by_label("Any words"), page.get_by_label("Keep as set")
    words.fill("yak, newt")
    take = hold(page, "**/labels")
    with page.expect_request("**/labels"):
        keep_as(page, "pond")
    words.fill("yak, newt, crow ")
    name.fill("sky")
    with page.expect_request("**/labels"):  # the sets are listed again
        take().fallback()
    find_box(page, "everyday").check()
    page.unroute("**/labels")
    take().fallback()
    for box in ("pond", "everyday"):
        expect(find_box(page, box)).to_be_checked()
    expect(words).to_have_value("crow ")
    expect(name).to_have_value("sky")


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
    expect_sets(page, "own + trained + everyday")
    assert visit.asked[-1]["label_set"] == ["own", "trained", "everyday"]


@pytest.fixture
def page(visit: Visit) -> Page:
    """The page of a service with two stored sets."""
    register(visit, "herd", "yak")
    register(visit, "zoo", "newt")
    return visit.open()


def press_delete(page: Page, name: str, answer: str = "Delete") -> None:
    page.get_by_role("button", name=f"Delete {name}").click()
    page.get_by_role("dialog", name=f"Delete {name}?").get_by_role("button", name=answer).click()


def expect_deleted(page: Page, name: str) -> None:
    expect(page.locator("#sets-status")).to_have_text(f"{name} is deleted.")
    expect(find_box(page, name)).to_have_count(0)


def test_confirmed_deletion_removes_the_set_and_labels_the_photo_again(
    page: Page, visit: Visit
) -> None:
    names = page.locator("#sets button").evaluate_all("all => all.map(each => each.ariaLabel)")
    assert names == ["Delete herd", "Delete zoo"], "others cannot be deleted"
    find_box(page, "zoo").check()
    expect_sets(page, "zoo + trained + everyday")
    page.get_by_label("Compare with").select_option("zoo")
    expect(page.locator(".column")).to_have_count(2)
    press_delete(page, "zoo")
    expect_deleted(page, "zoo")
    expect(page.locator(".column")).to_have_count(1)
    expect_sets(page, "trained + everyday")
    expect(page.get_by_label("Compare with")).to_have_value("")
    assert page.locator("#compare option").all_inner_texts() == [
        *("nothing", "trained", "everyday", "herd")
    ]
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
    expect(page.locator(".set", has=find_box(page, "zoo"))).to_contain_text("3 labels")
    assert "zoo" in list_names(visit)
    press_delete(page, "zoo")
    expect_deleted(page, "zoo")
    assert "zoo" not in list_names(visit)


def test_set_deleted_by_another_client_disappears(page: Page, visit: Visit) -> None:
    find_box(page, "zoo").check()
    expect_sets(page, "zoo + trained + everyday")
    httpx.delete(f"{visit.url}/labels/zoo", timeout=60)
    press_delete(page, "zoo")
    expect_deleted(page, "zoo")
    expect_sets(page, "trained + everyday")


def test_refused_deletion_shows_an_error_and_keeps_the_set(page: Page) -> None:
    title = "This label set is read-only"
    answer(page, "**/labels/zoo", 409, title)
    press_delete(page, "zoo")
    expect(page.locator("#sets-status")).to_have_text(title)
    expect(page.get_by_role("button", name="Delete zoo")).to_be_focused()
    press_delete(page, "zoo")
    expect_deleted(page, "zoo")


def test_deletion_asks_for_an_admin_key(page: Page) -> None:
    demand_key(page, "**/labels/zoo", 403, "This API key may not do that", code="forbidden")
    press_delete(page, "zoo")
    expect(page.get_by_role("alert")).to_have_text(
        "This API key may not do that: type an admin key into the field “API key”."
    )
    expect(page.get_by_role("textbox", name="API key")).to_be_focused()
    page.keyboard.type("sesame")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_be_hidden()
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
    expect(find_box(page, "everyday")).to_be_focused()


def test_stored_sets_and_the_dialog_fit_a_phone_and_pass_axe(visit: Visit) -> None:
    name = "w" * 100
    register(visit, name, "yak")
    visit.page.set_viewport_size({"width": 320, "height": 700})
    page = visit.open()
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
