"""Deleting a stored label set: after a confirmation, with a key, in the shown version only."""

import httpx2 as httpx
import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.conftest import Visit
from tests.browser.test_looks import assert_accessible, keep_screenshot


def register(visit: Visit, name: str, *labels: str) -> None:
    response = httpx.put(f"{visit.url}/labels/{name}", json={"labels": list(labels)}, timeout=60)
    assert response.is_success, response.text


def list_names(visit: Visit) -> list[str]:
    listed = httpx.get(f"{visit.url}/labels", timeout=60).json()["label_sets"]
    return [found["name"] for found in listed]


def find_box(page: Page, name: str) -> Locator:
    return page.get_by_role("checkbox", name=name)


def press_delete(page: Page, name: str, answer: str = "Delete") -> None:
    page.get_by_role("button", name=f"Delete {name}").click()
    page.get_by_role("dialog", name=f"Delete {name}?").get_by_role("button", name=answer).click()


def expect_deleted(page: Page, name: str) -> None:
    expect(page.locator("#sets-status")).to_have_text(f"{name} is deleted.")


def open_with_zoo(visit: Visit) -> Page:
    page = visit.open()
    find_box(page, "zoo").check()
    expect(page.locator(".column h3")).to_have_text("zoo + trained + everyday")
    return page


@pytest.fixture(autouse=True)
def stored_sets(visit: Visit) -> None:
    """Resets the service to two stored sets."""
    register(visit, "herd", "yak")
    register(visit, "zoo", "newt")


def test_only_stored_sets_can_be_deleted(visit: Visit) -> None:
    page = visit.open()
    expect(find_box(page, "zoo")).to_be_visible()
    buttons = page.locator("#sets button")
    names = buttons.evaluate_all("buttons => buttons.map(button => button.ariaLabel)")
    assert names == ["Delete herd", "Delete zoo"]


def test_confirmed_deletion_removes_the_set_and_labels_the_photo_again(visit: Visit) -> None:
    page = open_with_zoo(visit)
    press_delete(page, "zoo")
    expect_deleted(page, "zoo")
    expect(find_box(page, "zoo")).to_have_count(0)
    expect(page.locator(".column h3")).to_have_text("trained + everyday")
    assert page.locator("#compare option").all_inner_texts() == [
        *("nothing", "trained", "everyday", "herd")
    ]
    assert "zoo" not in list_names(visit)
    expect(page.get_by_role("alert")).to_be_hidden()


def test_deleted_set_leaves_the_comparison(visit: Visit) -> None:
    page = visit.open()
    page.get_by_label("Compare with").select_option("zoo")
    expect(page.locator(".column")).to_have_count(2)
    press_delete(page, "zoo")
    expect(page.locator(".column")).to_have_count(1)
    expect(page.get_by_label("Compare with")).to_have_value("")


def test_deleting_an_unused_set_sends_no_prediction(visit: Visit) -> None:
    page = visit.open()
    press_delete(page, "zoo")
    expect_deleted(page, "zoo")
    assert len(visit.asked) == 1


@pytest.mark.parametrize("button", ["Cancel", None])
def test_unconfirmed_deletion_deletes_nothing(visit: Visit, button: str | None) -> None:
    page = visit.open()
    press_delete(page, "herd")  # not an answer to the next dialog
    expect_deleted(page, "herd")
    page.get_by_role("button", name="Delete zoo").click()
    expect(page.get_by_role("dialog")).to_contain_text("Its 1 label will be deleted for everyone")
    if button:
        page.get_by_role("button", name=button).click()
    else:
        page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Delete zoo")).to_be_focused()
    expect(page.locator("#sets-status")).to_be_empty()
    find_box(page, "zoo").check()
    expect(page.locator(".column h3")).to_have_text("zoo + trained + everyday")
    assert "zoo" in list_names(visit)


def test_set_changed_by_another_client_is_deleted_only_on_a_second_try(visit: Visit) -> None:
    page = visit.open()
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


def test_set_deleted_by_another_client_disappears(visit: Visit) -> None:
    page = open_with_zoo(visit)
    httpx.delete(f"{visit.url}/labels/zoo", timeout=60)
    press_delete(page, "zoo")
    expect_deleted(page, "zoo")
    expect(find_box(page, "zoo")).to_have_count(0)
    expect(page.locator(".column h3")).to_have_text("trained + everyday")


@pytest.mark.parametrize(
    ("status", "title"),
    [(409, "This label set is read-only"), (503, "The label store cannot be used")],
)
def test_refused_deletion_shows_an_error_and_keeps_the_set(
    visit: Visit, status: int, title: str
) -> None:
    page = visit.open()
    page.route(
        "**/labels/zoo", lambda route: route.fulfill(status=status, json={"title": title}), times=1
    )
    press_delete(page, "zoo")
    expect(page.locator("#sets-status")).to_have_text(title)
    expect(page.get_by_role("button", name="Delete zoo")).to_be_focused()
    press_delete(page, "zoo")
    expect_deleted(page, "zoo")


def test_deletion_asks_for_an_admin_key(visit: Visit) -> None:
    page = visit.open()
    problem = {"status": 403, "title": "This API key may not do that", "code": "forbidden"}

    def demand_key(route: Route) -> None:
        if route.request.headers.get("authorization") == "Bearer sesame":
            route.fallback()
        else:
            route.fulfill(status=403, json=problem)

    page.route("**/labels/zoo", demand_key)
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


def test_sets_are_deleted_with_the_keyboard_and_focus_moves_on(visit: Visit) -> None:
    page = visit.open()
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_stored_sets_and_the_dialog_fit_a_phone_and_pass_axe(visit: Visit, scheme: str) -> None:
    name = "w" * 100
    register(visit, name, "yak")
    visit.page.set_viewport_size({"width": 320, "height": 700})
    visit.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page = visit.open()
    expect(find_box(page, name)).to_be_visible()
    button = page.get_by_role("button", name=f"Delete {name}")
    button.scroll_into_view_if_needed()
    box = button.bounding_box()
    assert box is not None
    assert 0 <= box["x"] <= 320 - box["width"]
    assert box["height"] >= 24, "large enough for a finger"
    keep_screenshot(visit, f"sets-{scheme}")
    assert_accessible(visit)
    button.click()
    keep_screenshot(visit, f"delete-{scheme}")
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    question = page.get_by_role("dialog")
    assert question.evaluate("element => element.scrollWidth <= element.clientWidth")
    assert_accessible(visit)
    question.get_by_role("button", name="Delete").click()
    expect_deleted(page, name)
