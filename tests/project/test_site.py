"""The site builds strictly, and every link of the Markdown files outside it leads somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import sync_playwright

from tests.browser.conftest import CHROMIUM

ROOT = Path(__file__).parents[2]
# The build checks docs/.
DOCUMENTS = sorted({*ROOT.glob("*.md"), *ROOT.glob(".github/**/*.md"), *ROOT.glob("client/*.md")})
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?P<path>[^)\s#:]*)(?:#(?P<anchor>[^)\s]+))?\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
# The page among the first three results.
FIRST_FOUND = {
    "authentication": "security",
    "docker": "install",
    "everyday": "labels",
    "gpu": "tune",
    "kubernetes": "scale",
    "rate limit": "security",
    "siglip": "own-model",
    "speed": "performance",
}


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


def test_search_finds_the_page_for_words(site: Path) -> None:
    if CHROMIUM is None:
        pytest.skip("no chromium: apt-get install chromium")
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]) as browser,
    ):
        page = browser.new_page()
        page.route(
            "**/*", lambda route: route.fulfill(path=site / urlsplit(route.request.url).path[1:])
        )
        for words, name in FIRST_FOUND.items():
            page.goto(f"http://site.example/index.html?q={words}")
            found = page.locator(".md-search-result__item")
            found.first.wait_for(state="attached")
            links = [item.locator("a").first.get_attribute("href") for item in found.all()[:3]]
            assert f"/{name}/" in str(links), (words, links)


def test_site_loads_nothing_from_elsewhere(site: Path) -> None:
    page = (site / "index.html").read_text(encoding="utf-8")
    assert not re.search(r'<(script|link|img)[^>]*(src|href)="?https?:', page), (
        "loads from elsewhere"
    )


def test_links_lead_somewhere() -> None:
    broken = {document.name: find_broken_links(document) for document in DOCUMENTS}
    assert not any(broken.values()), broken
