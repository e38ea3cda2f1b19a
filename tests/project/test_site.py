"""The site builds strictly, and every link of the Markdown files outside it leads somewhere."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, sync_playwright

from tests.browser.conftest import CHROMIUM

ROOT = Path(__file__).parents[2]
# The build checks docs/.
DOCUMENTS = sorted({*ROOT.glob("*.md"), *ROOT.glob(".github/**/*.md"), *ROOT.glob("client/*.md")})
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?P<path>[^)\s#:]*)(?:#(?P<anchor>[^)\s]+))?\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def list_anchors(text: str) -> set[str]:
    """Returns the anchors of headings, as GitHub and MkDocs make them; without repeated ones."""
    headings = _HEADING.findall(re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


def find_broken_links(document: Path) -> list[str]:
    broken = []
    for link in _LINK.finditer(_CODE.sub("", document.read_text(encoding="utf-8"))):
        target = document.parent / link["path"] if link["path"] else document
        anchor = link["anchor"]
        if not target.exists() or (
            anchor and anchor not in list_anchors(target.read_text("utf-8"))
        ):
            broken.append(link[0])
    return broken


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, built strictly."""
    pytest.importorskip("material", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def overview(site: Path) -> Iterator[Page]:
    """A page of Chromium to which `http://site/` is the folder of the site."""
    if CHROMIUM is None:
        pytest.skip("no chromium: apt-get install chromium")
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]) as browser,
    ):
        page = browser.new_page()
        page.route(
            "http://site/**",
            lambda route: route.fulfill(path=site / urlsplit(route.request.url).path[1:]),
        )
        yield page


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("speed", "performance"),
        ("latency", "tune"),
        ("siglip", "own-model"),
        ("gpu", "tune"),
        ("docker", "install"),
        ("kubernetes", "scale"),
        ("threshold", "thresholds"),
        ("rate limit", "security"),
        ("authentication", "security"),
        ("metrics", "metrics"),
        ("everyday", "labels"),
    ],
)
def test_search_finds_the_page_for_words(overview: Page, words: str, name: str) -> None:
    overview.goto(f"http://site/index.html?q={words}")
    found = overview.locator(".md-search-result__item")
    found.first.wait_for(state="attached")
    links = [item.locator("a").first.get_attribute("href") or "" for item in found.all()[:3]]
    assert any(f"/{name}/" in link for link in links), links


def test_site_loads_nothing_from_elsewhere(site: Path) -> None:
    page = (site / "index.html").read_text(encoding="utf-8")
    assert not re.search(r'<(script|link|img)[^>]*(src|href)="?https?:', page), (
        "loads from elsewhere"
    )


def test_links_lead_somewhere() -> None:
    broken = {document.name: find_broken_links(document) for document in DOCUMENTS}
    assert not any(broken.values()), broken
