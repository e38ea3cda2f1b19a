"""Average precision against its definition."""

import math

import pytest
import torch

from models.commands import RequestError
from models.metrics import average_precisions, measure_rates, report_single_label


@pytest.mark.parametrize(
    ("scores", "targets", "expected"),
    [
        # The mean of the precision at each positive.
        ([9.0, 7.0, 5.0, 3.0, 1.0], [1, 0, 1, 0, 1], 100 * (1 / 1 + 2 / 3 + 3 / 5) / 3),
        ([900.0, 901.0], [0, 1], 100.0),
        ([-900.0, -901.0], [1, 0], 100.0),
        ([0.0, 0.0, 0.0, 0.0], [1, 0, 0, 0], 25.0),  # ties have one rank
        ([0.3, 0.1], [0, 0], math.nan),
        ([0.3, 0.1], [1, 1], math.nan),
    ],
)
def test_average_precision_of_a_label(
    scores: list[float], targets: list[int], expected: float
) -> None:
    values = average_precisions(torch.tensor(scores)[:, None], torch.tensor(targets)[:, None])
    assert values.tolist() == pytest.approx([expected], nan_ok=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scores_that_are_not_finite_are_refused(value: float) -> None:
    scores, targets = torch.tensor([[2.0], [1.0]]), torch.tensor([[1], [0]])
    with pytest.raises(RequestError, match="not finite numbers"):
        average_precisions(torch.where(targets > 0, value, scores), targets)


# Three photos, three labels; worked out by hand.
SCORES = torch.tensor([[0.9, 0.8, 0.1], [0.5, 0.2, 0.7], [0.4, 0.3, 0.2]])
TARGETS = torch.tensor([[1, 0, 0], [1, 0, 1], [1, 1, 0]])


def test_class_and_overall_rates_are_the_papers() -> None:
    rates = measure_rates(SCORES, TARGETS)
    # Predicted: a in 1, 2 (both right), b in 1 (wrong), c in 2 (right).
    assert rates["CP"] == pytest.approx(100 * (1 + 0 + 1) / 3)
    assert rates["CR"] == pytest.approx(100 * (2 / 3 + 0 + 1) / 3)
    assert (rates["OP"], rates["OR"]) == pytest.approx((100 * 3 / 4, 100 * 3 / 5))
    assert rates["OF1"] == pytest.approx(2 * 75 * 60 / 135)
    absent = torch.zeros(3, 1)  # a label without a positive does not count by class
    assert measure_rates(torch.cat([SCORES, absent], 1), torch.cat([TARGETS, absent], 1)) == rates


def test_top_k_rates_take_only_the_best_above_the_threshold() -> None:
    rates = measure_rates(SCORES, TARGETS, top_k=1)
    # Predicted: a in 1, c in 2; nothing in 3, where the best is below the threshold.
    assert (rates["OP"], rates["OR"]) == pytest.approx((100, 100 * 2 / 5))


def test_single_labels_are_counted_among_the_best() -> None:
    scores, targets = torch.rand(6, 8).sort(dim=1, descending=True).values, torch.zeros(6, 8)
    for photo, rank in enumerate((0, 0, 1, 4, 5, 7)):
        targets[photo, rank] = 1
    lines = [line.split() for line in report_single_label(scores, targets)]
    assert lines == [["top-1", "accuracy", "33.33"], ["top-5", "accuracy", "66.67"]]
