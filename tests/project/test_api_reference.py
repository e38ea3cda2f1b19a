"""`docs/api.md` matches the OpenAPI document."""

import re
from pathlib import Path

from tests.project.api_reference import read_openapi, write_reference

REFERENCE = Path(__file__).parents[2] / "docs" / "api.md"


def test_reference_is_current() -> None:
    current = write_reference(read_openapi())
    assert REFERENCE.read_text() == current, "docs/api.md is old: run `make reference`"


def test_reference_defines_every_schema_that_it_names() -> None:
    text = REFERENCE.read_text()
    named = set(re.findall(r"\]\(#(\w+)\)", text))
    assert named
    assert named <= {heading.lower() for heading in re.findall(r"^### (\w+)$", text, re.MULTILINE)}
