"""Average precision against its definition."""

import pytest
import torch

from models.metrics import average_precisions, mean_average_precision


def test_average_precision_is_the_mean_precision_at_each_positive() -> None:
    scores = torch.tensor([[9.0], [7.0], [5.0], [3.0], [1.0]])
    targets = torch.tensor([[1], [0], [1], [0], [1]])
    wanted = 100 * (1 / 1 + 2 / 3 + 3 / 5) / 3
    assert float(average_precisions(scores, targets)) == pytest.approx(wanted)


def test_large_logits_keep_their_order() -> None:
    scores = torch.tensor([[900.0, -900.0], [901.0, -901.0]])
    targets = torch.tensor([[0, 1], [1, 0]])
    assert mean_average_precision(scores, targets) == pytest.approx(100.0)


def test_tied_scores_rank_together() -> None:
    scores = torch.zeros(4, 1)
    targets = torch.tensor([[1], [0], [0], [0]])
    assert float(average_precisions(scores, targets)) == pytest.approx(25.0)


def test_a_label_without_positives_is_left_out_of_the_mean() -> None:
    scores = torch.tensor([[2.0, 0.3], [1.0, 0.1]])
    targets = torch.tensor([[1, 0], [0, 0]])
    assert average_precisions(scores, targets).isnan().tolist() == [False, True]
    assert mean_average_precision(scores, targets) == pytest.approx(100.0)
