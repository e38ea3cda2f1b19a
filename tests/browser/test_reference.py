"""`/docs` in a real browser: its forms work."""

from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.conftest import Visit


def open_form(visit: Visit, path: str) -> Locator:
    visit.page.goto(f"{visit.url}/docs")
    route = visit.page.locator(".opblock-post", has=visit.page.locator(f'[data-path="{path}"]'))
    route.locator(".opblock-summary").click()
    route.get_by_role("button", name="Try it out").click()
    return route


def execute(route: Locator, status: int) -> None:
    route.get_by_role("button", name="Execute").click()
    expect(route.locator(".live-responses-table .response-col_status")).to_contain_text(
        [str(status)]
    )


@pytest.mark.parametrize("path", ["/predict", "/predict/batch"])
def test_docs_form_sends_a_prediction(visit: Visit, samples: Path, path: str) -> None:
    route = open_form(visit, path)
    route.locator("[type=file]").set_input_files(samples / "chelsea.jpg")
    execute(route, 200)


def test_docs_form_sends_each_list_value_as_its_own_field(visit: Visit, samples: Path) -> None:
    route = open_form(visit, "/predict")
    route.locator("[type=file]").set_input_files(samples / "chelsea.jpg")
    labels = route.locator('[data-property-name="candidate_labels"]')
    for place, label in enumerate(("yak", "newt, or crow")):
        labels.get_by_role("button", name="Add").click()
        labels.locator("input").nth(place).fill(label)
    execute(route, 200)
    assert visit.asked[-1]["candidate_labels"] == ["yak", "newt, or crow"]


def test_docs_example_body_registers_a_label_set(visit: Visit) -> None:
    execute(open_form(visit, "/labels"), 201)
