"""JSON becomes dataclasses; a value of another type is named by its place."""

from typing import Any

import pytest

from ml_decoder_client.answers import Answer, ScoredLabel
from ml_decoder_client.reading import read_json
from tests.support.fake_service import ANSWER


def test_unknown_fields_are_ignored_and_missing_ones_take_their_default() -> None:
    label = {"label": "cat", "score": 1, "threshold": 0.5, "source": "new", "calibrated": True}
    answer = read_json(Answer, {**ANSWER, "labels": [label], "newer": [1]})
    assert (answer.labels[0].score, answer.labels[0].map) == (1, None)
    assert (answer.labels[0].parents, answer.resolved) == ([], {})
    assert {answer.labels[0]} == {answer.labels[0]}, "labels have a hash"
    assert read_json(Answer, {**ANSWER, "labels": [{**label, "map": [[0, 0.5]]}]}).labels[0].map


def test_label_without_the_flag_is_found_if_its_score_reaches_the_threshold() -> None:
    label = {"label": "cat", "threshold": 0.5, "source": "trained", "calibrated": True}
    for score, more, found in ((0.5, {}, True), (0.4, {}, False), (0.9, {"found": False}, False)):
        assert read_json(ScoredLabel, {**label, "score": score, **more}).found is found


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"image": {"width": 2, "height": 1.5}}, "image.height: not a number"),
        ({"image": {"width": 2, "height": True}}, "image.height: not a number"),
        ({"image": [2, 1]}, "image: not an object"),
        ({"labels": {}}, "labels: not a list"),
        ({"labels": [{"label": "cat"}]}, "labels.0.score: missing"),
        ({"label_sets": [{"name": "pets", "version": 1}]}, "label_sets.0.version: not a text"),
        ({"request_id": None}, "request_id: not a text"),
    ],
)
def test_value_of_another_type_is_named_by_its_place(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason}$"):
        read_json(Answer, {**ANSWER, **change})
    assert read_json(Answer, ANSWER).request_id == ANSWER["request_id"]
