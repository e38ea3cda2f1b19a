"""The site builds strictly, and every link of the Markdown files outside it leads somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs_swagger_ui_tag", reason="needs the extra docs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_links_lead_somewhere() -> None:
    broken = {document.name: find_broken_links(document) for document in DOCUMENTS}
    assert not any(broken.values()), broken
