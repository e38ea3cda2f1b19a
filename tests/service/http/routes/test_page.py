"""The files of the pages and their headers."""

import re
from html.parser import HTMLParser

import pytest
from fastapi.testclient import TestClient

from service.http.routes.page import PAGE_FOLDER
from tests.support.serving import assert_problem

FILES = sorted(
    path.relative_to(PAGE_FOLDER).as_posix() for path in PAGE_FOLDER.rglob("*") if path.is_file()
)
PAGES = {"/": "index.html", "/docs": "docs.html"}


class Reader(HTMLParser):
    """Collects what a page loads, and everything that a strict policy would refuse."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.inline: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.inline += [name for name in given if name == "style" or name.startswith("on")]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.inline.append(tag)
        if tag in ("script", "img", "link"):
            self.loaded += [value for name in ("src", "href") if (value := given.get(name))]


@pytest.mark.parametrize("path", PAGES)
def test_page_loads_only_files_that_this_service_has(client: TestClient, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    page = Reader(response.text)
    assert page.inline == []
    assert page.loaded
    for address in page.loaded:
        assert client.get(f"/{address}").status_code == 200, address


def test_scripts_and_styles_name_no_other_host() -> None:
    for name in FILES:
        if name.endswith((".js", ".css", ".html")):
            text = (PAGE_FOLDER / name).read_text()
            assert not re.search(r"(?:https?:)?//[\w-]+\.\w", text.replace("// ", "")), name


@pytest.mark.parametrize("path", [*PAGES, "/page/app.js"])
def test_policy_forbids_everything_but_this_host(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["referrer-policy"] == "no-referrer"
    for other in (path, "/info", "/nowhere"):
        headers = client.get(other).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert ("content-security-policy" in headers) == (other == path)


def test_every_file_is_served_as_its_type_and_known_again(client: TestClient) -> None:
    types = {"css": "text/css", "js": "javascript", "jpg": "image/jpeg", "svg": "image/svg+xml"}
    for path, name in [*PAGES.items(), *((f"/page/{name}", name) for name in FILES)]:
        response = client.get(path)
        assert response.content == (PAGE_FOLDER / name).read_bytes()
        assert types.get(name.rsplit(".", 1)[-1], "text/") in response.headers["content-type"]
        known = {"If-None-Match": f'"other", {response.headers["etag"]}'}
        assert client.get(path, headers=known).status_code == 304


@pytest.mark.parametrize(
    "path",
    [
        *("/page", "/page/", "/page/samples", "/page/nothing.js", "/page/a%00b"),
        *("/page/../app.py", "/page/%2e%2e/app.py", "/page//etc/passwd", "/swagger-ui/%2e%2e/x"),
    ],
)
def test_nothing_outside_of_the_folder_is_served(client: TestClient, path: str) -> None:
    assert_problem(client.get(path), 404, "not_found")


@pytest.mark.parametrize("name", ["samples/a.jpg.map-1-cat.jpg", "notes.txt"])
def test_file_that_is_not_of_the_package_is_not_served(client: TestClient, name: str) -> None:
    stray = PAGE_FOLDER / name
    stray.write_bytes(b"private")
    try:
        assert_problem(client.get(f"/page/{name}"), 404, "not_found")
    finally:
        stray.unlink()
    assert client.get("/page/samples/chelsea.jpg").status_code == 200


@pytest.mark.parametrize("asked", ["foo=1-2", "bytes=9999999-", "bytes=0-1"])
def test_file_is_sent_whole_for_every_range(client: TestClient, asked: str) -> None:
    response = client.get("/page/app.js", headers={"Range": asked})
    assert response.status_code == 200
    assert response.headers["accept-ranges"] == "none"
    assert response.content == (PAGE_FOLDER / "app.js").read_bytes()
