"""README and the generated pages match settings, commands, errors and the OpenAPI document."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from service.errors import ServiceError, list_coded
from service.question import Question
from tests.project.api_reference import read_openapi, write_openapi
from tests.project.command_reference import write_commands
from tests.project.setting_reference import write_settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_readme_has_at_most_150_lines() -> None:
    assert len(README.splitlines()) <= 150


def test_every_predict_parameter_is_in_the_guide() -> None:
    guide = (ROOT / "docs" / "predict.md").read_text("utf-8")
    for name in Question.model_fields:
        assert f"`{name}`" in guide


def test_every_make_target_in_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"`make ([a-z]+)`|\$ make ([a-z]+)", README))
    assert named
    for target in {first or second for first, second in named}:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_file_named_in_the_documents_exists() -> None:
    for document in (ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").glob("*.md")):
        text = document.read_text("utf-8")
        for path in re.findall(r"`((?:models|service|export|tests|deploy)/[\w./-]+)`", text):
            assert (ROOT / path).exists(), f"{document.name}: {path}"


PAGES: dict[str, Callable[[], str]] = {
    "openapi.json": write_openapi,
    "settings.md": write_settings,
    "command-line.md": write_commands,
}


@pytest.mark.parametrize("page", PAGES)
def test_generated_page_is_current(page: str) -> None:
    current = (ROOT / "docs" / page).read_text("utf-8")
    assert PAGES[page]() == current, f"docs/{page} is old: run `make reference`"


def test_api_page_names_every_route_but_those_of_dialects() -> None:
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    own = (p for p, methods in read_openapi()["paths"].items() if "dialects" not in str(methods))
    assert [path for path in own if f"`{path}`" not in page] == []


def test_error_page_has_a_row_for_every_error_that_a_client_gets() -> None:
    page = (ROOT / "docs" / "errors.md").read_text("utf-8")
    row = re.compile(r"^\| `(\w+)` \| (\d+)(, retry)? \| ([^|]+) \| [^|]+ \|$", re.MULTILINE)
    expected = {
        (error.code, str(error.status), ", retry" if error.retry_after_seconds else "", error.title)
        for error in list_coded(ServiceError)
    }
    assert set(row.findall(page)) == expected
