"""ConSE: a cosine with the mean of the names that a classifier sees."""

import torch
from torch.nn import functional

from models.evaluate_open import score_conse


def test_conse_is_the_cosine_with_the_name_of_a_certain_classifier() -> None:
    names = functional.normalize(torch.randn(4, 5), dim=1)
    logits = torch.tensor([[0.0, 90.0, 0.0, 0.0], [90.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(score_conse(logits, names, names), names[[1, 0]] @ names.T)


def test_conse_takes_the_middle_of_two_equal_names() -> None:
    names = torch.eye(3)
    found = score_conse(torch.tensor([[50.0, 50.0, 0.0]]), names, names)
    torch.testing.assert_close(found, torch.tensor([[0.5**0.5, 0.5**0.5, 0.0]]))
