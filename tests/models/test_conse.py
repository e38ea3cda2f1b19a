"""ConSE: a cosine with the mean of what a classifier sees."""

import torch
from torch.nn import functional

from models.conse import compare


def test_a_sure_classifier_gives_the_cosine_of_its_name() -> None:
    names = functional.normalize(torch.randn(4, 5), dim=1)
    logits = torch.tensor([[0.0, 90.0, 0.0, 0.0], [90.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(compare(logits, names, names), names[[1, 0]] @ names.T)


def test_two_equal_names_give_their_middle() -> None:
    names = torch.eye(3)
    found = compare(torch.tensor([[50.0, 50.0, 0.0]]), names, names)
    torch.testing.assert_close(found, torch.tensor([[0.5**0.5, 0.5**0.5, 0.0]]))
