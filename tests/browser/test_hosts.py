"""`/docs`, both pages below a path of a proxy, and pages of other sites."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from service.bundle.reader import Bundle
from tests.browser.actions import CAT, execute, keep_as, open_form, type_labels
from tests.browser.conftest import NAMES, TIMEOUT_MS, Visit
from tests.e2e.server_process import ServerProcess, serve_command
from tests.support import nginx

PREFIX = "/team/tags"
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


def test_docs_forms_send_a_prediction_with_each_list_value_as_its_own_field(visit: Visit) -> None:
    route = open_form(visit, "/predict")
    route.locator("[type=file]").set_input_files(CAT)
    labels = route.locator('[data-property-name="candidate_labels"]')
    for place, label in enumerate(("yak", "newt, or crow")):
        labels.get_by_role("button", name="Add").click()
        labels.locator("input").nth(place).fill(label)
    execute(route, 200)
    assert visit.asked[-1]["candidate_labels"] == ["yak", "newt, or crow"]


@pytest.fixture(scope="module")
def prefixed(open_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a service whose nginx removes the path, without a slash at its end."""
    with ServerProcess(*serve_command(open_bundle, "--label-store", "memory")) as server:
        server.open_client().close()
        port = server.find_address()[1]
        site = nginx.prefix_site(PREFIX, port, strips=True, names_it=True)
        with nginx.Nginx(tmp_path_factory.mktemp("nginx"), site) as proxy:
            yield f"http://127.0.0.1:{proxy.port}{PREFIX}"


def test_page_works_below_the_prefix(visit: Visit, prefixed: str) -> None:
    for end in ("", "/"):
        visit.url = prefixed + end
        page = visit.open()
        expect(page.locator("#curl")).to_contain_text(f"{prefixed}/predict")
        expect(page.locator("#python")).to_contain_text(f'Client("{prefixed}")')
    type_labels(page, "newt, crow")
    keep_as(page, "animals")
    expect(page.locator("#sets")).to_contain_text("animals")


def test_docs_forms_work_below_the_prefix(visit: Visit, prefixed: str) -> None:
    visit.url = prefixed
    for path in ("/predict", "/predict/batch"):
        route = open_form(visit, path)
        route.locator("[type=file]").set_input_files(CAT)
        execute(route, 200)
        expect(route.locator(".request-url")).to_contain_text(f"{prefixed}{path}")
    route = open_form(visit, "/labels")
    execute(route, 201)
    expect(route.locator(".live-responses-table")).to_contain_text(f"location: {PREFIX}/labels/zoo")


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


def test_page_under_an_unknown_name_says_which_setting_it_needs(page: Page, address: str) -> None:
    page.goto(f"http://nas{NAMES}:{address.rpartition(':')[2]}/")
    page.get_by_role("button", name="Sample: cat").click()
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
