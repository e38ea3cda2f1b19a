"""Texts of label sets: one normal form, limits, and reasons of refusals."""

import time
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from service.fields import LabelSetName, LabelText, PromptText, normalise_text


@given(st.text(max_size=30))
def test_every_spelling_of_a_text_has_one_normal_form(text: str) -> None:
    try:
        normal = normalise_text(text)
    except ValueError:
        return
    assert normalise_text(normal) == normal == normal.strip() != ""
    for form in ("NFC", "NFD"):
        assert normalise_text(f" {unicodedata.normalize(form, text)}\t") == normal


@pytest.mark.parametrize("hidden", [*"\0\n\x7f\u202e\u200b\ufeff\u2028\ud800"])
def test_invisible_character_inside_a_text_is_refused(hidden: str) -> None:
    with pytest.raises(ValueError, match="control characters"):
        normalise_text(f"a{hidden}b")


@pytest.mark.parametrize(("kind", "most"), [(LabelText, 200), (PromptText, 1000)])
@pytest.mark.parametrize("share", [1, 4])
def test_long_text_is_refused_with_its_limit(kind: Any, most: int, share: int) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python("a" * (share * most + 1))
    (error,) = caught.value.errors()
    assert error["msg"] == f"Text should have at most {most} characters"
    assert TypeAdapter(kind).validate_python("a" * most) == "a" * most


@pytest.mark.parametrize(("kind", "most"), [(LabelText, 200), (PromptText, 1000)])
def test_very_long_text_is_refused_before_it_is_normalised(kind: Any, most: int) -> None:
    """NFC of 100,000 combining marks takes minutes and holds the GIL."""
    marks = "a" + 50_000 * "\u0300" + 50_000 * "\u0316"
    started = time.process_time()
    with pytest.raises(ValidationError, match=f"at most {most} characters"):
        TypeAdapter(kind).validate_python(marks)
    assert time.process_time() - started < 5
    decomposed = most * "e\u0301"
    assert TypeAdapter(kind).validate_python(decomposed) == most * "\u00e9"


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a b", "x" * 101, "caf\u00e9", "a\n", 7])
def test_set_name_that_does_not_fit_a_url_is_refused_with_the_rule(name: object) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(LabelSetName).validate_python(name)
    (error,) = caught.value.errors()
    assert "1 to 100 letters, digits or ._- of ASCII" in error["msg"]
    assert TypeAdapter(LabelSetName).validate_python("a.b-c_1") == "a.b-c_1"
