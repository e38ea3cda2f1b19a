"""Tests of the question: HTTP, the command line and Python refuse the same values."""

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from service.fields import ThresholdName
from service.question import Question


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("top_k", value) for value in (0, -1, "0", "a", "", "1.5", "1e9", 1.5, "9" * 5000, True)),
        *(("top_k", value) for value in ({"a": []}, "recall")),
        *(("min_labels", value) for value in (0, -1, "a", 1.5, True)),
        *(("threshold", value) for value in (-0.1, 1.1, 2, float("nan"), float("inf"), True)),
        *(("threshold", value) for value in ("NaN", "inf", "-1", "1e999", "", "sometimes", [0.5])),
        *(("include", value) for value in ("cat", [1], [""], ["x" * 201], ["\ud800"])),
        ("exclude", [["cat"]]),
        ("label_set", ["../pets"]),
        *(("candidate_labels", value) for value in ([" "], ["a\x00b"])),
        *(("min_version", value) for value in (-1, "x", True, 2**63)),
        *(("explain", value) for value in ("maybe", "", "2", 2, ["true"])),
        ("surprise", 1),
    ],
)
def test_question_names_a_bad_value_once(name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        Question.model_validate({name: value})
    (error,) = caught.value.errors()
    assert error["loc"][0] == name
    if name == "explain":
        assert error["msg"] == "Input should be true, false or 'overlay'"
    if name == "threshold" and not isinstance(value, bool):
        assert error["msg"] == (
            "Input should be a number from 0 to 1, 'calibrated', 'balanced', 'recall' or 'precise'"
        )


@pytest.mark.parametrize("name", ["include", "exclude", "label_set", "candidate_labels"])
@pytest.mark.parametrize("value", [[1] * 200_000, ["a"] * 200_000], ids=["invalid", "long"])
def test_list_ends_at_its_first_error_and_at_its_limit(name: str, value: list[Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        Question.model_validate({name: value})
    assert caught.value.error_count() <= 2  # an invalid item also leaves the list too short


@pytest.mark.parametrize("threshold", [0, 1, "0", "1", "0.25", *get_args(ThresholdName)])
def test_ends_of_the_threshold_range_are_allowed(threshold: Any) -> None:
    assert Question(threshold=threshold).threshold is not None


@pytest.mark.parametrize(
    ("given", "meant"), [(True, True), ("true", True), ("false", False), ("overlay", "overlay")]
)
def test_explain_is_a_switch_or_asks_for_overlays(given: Any, meant: bool | str) -> None:
    assert Question(explain=given).explain == meant
