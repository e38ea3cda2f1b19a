"""Both pages below a path of a real nginx, which removes the path from requests or keeps it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from service.bundle.reader import Bundle
from tests.browser.conftest import Visit
from tests.browser.test_reference import execute, open_form
from tests.e2e.server_process import ServerProcess, serve_command
from tests.support import nginx

PREFIX = "/team/tags"
# Flags of the service, and of the proxy.
KINDS = {
    "header": ((), {"strips": True, "names_it": True}),
    "setting": (("--root-path", PREFIX), {"strips": False, "names_it": False}),
}


@pytest.fixture(scope="module", params=KINDS)
def address(
    request: pytest.FixtureRequest, open_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The URL of the service behind the proxy, without a slash at its end."""
    missing = nginx.find_missing()
    if missing is not None:
        pytest.skip(f"nginx: {missing}")
    flags, kind = KINDS[request.param]
    with ServerProcess(*serve_command(open_bundle, "--label-store", "memory", *flags)) as server:
        server.open_client().close()
        site = nginx.prefix_site(PREFIX, server.find_address()[1], **kind)
        proxy = nginx.Nginx(tmp_path_factory.mktemp("nginx"), site)
        try:
            yield f"http://127.0.0.1:{proxy.port}{PREFIX}"
        finally:
            proxy.stop()


@pytest.mark.parametrize("end", ["", "/"])
def test_playground_predicts_and_shows_the_request_with_the_prefix(visit: Visit, end: str) -> None:
    url, visit.url = visit.url, visit.url + end
    page = visit.open()
    expect(page.locator("#curl")).to_contain_text(f"{url}/predict")
    expect(page.locator("#python")).to_contain_text(f'Client("{url}")')


def test_playground_keeps_a_label_set_below_the_prefix(visit: Visit) -> None:
    page = visit.open()
    page.get_by_label("Any words").fill("newt, crow")
    page.get_by_label("Keep as set").fill("animals")
    page.get_by_role("button", name="Keep", exact=True).click()
    expect(page.locator("#sets")).to_contain_text("animals")


@pytest.mark.parametrize("path", ["/predict", "/predict/batch"])
def test_docs_form_sends_a_prediction_below_the_prefix(
    visit: Visit, samples: Path, path: str
) -> None:
    route = open_form(visit, path)
    route.locator("[type=file]").set_input_files(samples / "chelsea.jpg")
    execute(route, 200)
    expect(route.locator(".request-url")).to_contain_text(f"{visit.url}{path}")


def test_docs_form_registers_a_label_set_below_the_prefix(visit: Visit) -> None:
    route = open_form(visit, "/labels")
    execute(route, 201)
    expect(route.locator(".live-responses-table")).to_contain_text(f"location: {PREFIX}/labels/zoo")
