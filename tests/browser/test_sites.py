"""What Chromium may send from pages of other sites, and under other names of the service."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import NAMES, TIMEOUT_MS

FETCH = """([path, options]) => fetch(path, options).then(async (answer) => [
  answer.status, answer.status === 204 ? "" : (await answer.json()).code])"""
ADD = {
    "method": "POST",
    "headers": {"Content-Type": "application/json"},
    "body": '{"name": "zoo", "labels": ["panda"]}',
}
DELETE = {"method": "DELETE"}
# No script and no preflight is needed for such a form.
FORM = """<form method="post" enctype="multipart/form-data" action="{url}/predict">
  <input name="candidate_labels" value="panda"><button>Send</button></form>"""


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.new_context() as context:
        context.set_default_timeout(TIMEOUT_MS)
        yield context.new_page()


def send(page: Page, path: str, options: dict[str, Any]) -> list[Any]:
    answer: list[Any] = page.evaluate(FETCH, [path, options])
    return answer


def test_page_whose_name_was_rebound_changes_nothing(page: Page, address: str) -> None:
    port = address.rpartition(":")[2]
    page.goto(f"http://rebind{NAMES}:{port}/livez")
    assert send(page, "/labels", ADD) == [403, "host_not_allowed"]
    page.goto(f"{address}/livez")
    assert send(page, "/labels/zoo", DELETE) == [404, "label_set_not_found"]
    assert send(page, "/labels", ADD)[0] == 201
    page.goto(f"http://rebind{NAMES}:{port}/livez")
    assert send(page, "/labels/zoo", DELETE) == [403, "host_not_allowed"]
    page.goto(f"http://name.localhost:{port}/livez")
    assert send(page, "/labels/zoo", DELETE) == [204, ""]


def test_playground_under_an_unknown_name_says_which_setting_it_needs(
    page: Page, address: str
) -> None:
    page.goto(f"http://nas{NAMES}:{address.rpartition(':')[2]}/")
    alert = page.locator("#alert")
    expect(alert).to_contain_text(f"If 'nas{NAMES}' is right, add it to ML_DECODER_ALLOWED_HOSTS")
    expect(page.locator("#key-form")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_form_of_another_site_is_refused(page: Page, address: str, scheme: str) -> None:
    other, form = f"{scheme}://other{NAMES}/", FORM.format(url=address)
    page.route(other, lambda route: route.fulfill(body=form, content_type="text/html"))
    page.goto(other)
    with page.expect_response(f"{address}/predict") as sent:
        page.get_by_role("button").click()
    assert (sent.value.status, sent.value.json()["code"]) == (403, "cross_site")
