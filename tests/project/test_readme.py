"""README and the generated pages match settings, commands, errors and the OpenAPI document."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from service.errors import ServiceError
from service.labels.question import Question
from service.settings import Settings
from tests.project.api_reference import read_openapi, write_reference
from tests.project.command_reference import write_commands
from tests.project.error_reference import CAUSES, list_errors, write_catalogue
from tests.project.setting_reference import write_settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
REFERENCE = (ROOT / "docs" / "api.md").read_text()


def settings_table() -> str:
    rows = ["| variable | meaning |", "|---|---|"]
    for name, field in Settings.model_fields.items():
        meaning = " ".join((field.description or "").split()).replace("|", "or")
        rows.append(f"| `ML_DECODER_{name.upper()}` | {meaning} |")
    return "\n".join(rows)


def test_every_setting_is_in_the_readme() -> None:
    assert settings_table() in README, f"README.md needs this table:\n{settings_table()}"


def test_every_predict_parameter_is_in_the_readme() -> None:
    for name in Question.model_fields:
        assert f"`{name}`" in README


def test_every_make_target_in_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"`make ([a-z]+)`|\$ make ([a-z]+)", README))
    assert named
    for target in {first or second for first, second in named}:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_file_named_in_the_documents_exists() -> None:
    for document in (README, (ROOT / "ARCHITECTURE.md").read_text()):
        for path in re.findall(r"`((?:models|service|export|tests|deploy)/[\w./-]+)`", document):
            assert (ROOT / path).exists(), path


def test_reference_is_current() -> None:
    current = write_reference(read_openapi())
    assert current == REFERENCE, "docs/api.md is old: run `make reference`"


@pytest.mark.parametrize(
    ("page", "write"),
    [
        ("errors", write_catalogue),
        ("settings", write_settings),
        ("command-line", write_commands),
    ],
)
def test_generated_page_is_current(page: str, write: Callable[[], str]) -> None:
    current = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
    assert write() == current, f"docs/{page}.md is old: run `make reference`"


def test_catalogue_explains_every_error_that_a_client_gets() -> None:
    codes = {error.code for error in list_errors(ServiceError)}
    assert codes == set(CAUSES)
    catalogue = (ROOT / "docs" / "errors.md").read_text("utf-8")
    for code in codes:
        assert f"| `{code}` |" in catalogue


def test_reference_defines_every_schema_that_it_names() -> None:
    named = set(re.findall(r"\]\(#(\w+)\)", REFERENCE))
    assert named
    headings = re.findall(r"^### (\w+)$", REFERENCE, re.MULTILINE)
    assert named <= {heading.lower() for heading in headings}
