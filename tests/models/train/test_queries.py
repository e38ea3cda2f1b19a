"""Augmentation of label queries in the training of a zero-shot head."""

import torch

from models.train.queries import QueryAugmentation


def test_augmentation_adds_absent_queries_and_moves_the_others() -> None:
    torch.manual_seed(0)
    embeddings, targets = torch.randn(6, 5) + 3, torch.randint(0, 2, (4, 6)).float()
    queries, wanted = QueryAugmentation(num_random=8, noise=0.1).augment(embeddings, targets)
    assert (queries.shape, wanted.shape) == ((14, 5), (4, 14))
    torch.testing.assert_close(wanted[:, :6], targets)
    assert not wanted[:, 6:].any()
    moved = (queries[:6] - embeddings).abs()
    assert 0 < moved.mean() < 0.3
    assert (queries[6:].mean(dim=0) - 3).abs().max() < 2


def test_augmentation_changes_nothing_by_default() -> None:
    embeddings, targets = torch.randn(6, 5), torch.ones(4, 6)
    queries, wanted = QueryAugmentation().augment(embeddings, targets)
    torch.testing.assert_close(queries, embeddings)
    torch.testing.assert_close(wanted, targets)
