"""Losses of the open head, against their definitions or at their minima."""

import math

import pytest
import torch

from models.train_open.losses import (
    augment_queries,
    choose_columns,
    classifier_loss,
    matching_loss,
    ranking_loss,
    soft_target_loss,
    weak_negative_loss,
)

LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.0, 3.0, -2.0]])


def cost(logit: float) -> float:
    """Cross-entropy of a present label with this logit."""
    return math.log1p(math.exp(-logit))


def test_concepts_are_summed_over_a_photo_and_their_mean_is_over_the_photos() -> None:
    positives = torch.tensor([[1.0, 0, 0], [0, 1, 0]])
    absent = [-1.0, 0.5, 0.0, -2.0]
    focused = [cost(-logit) / (1 + math.exp(-logit)) ** 2 for logit in absent]
    loss = weak_negative_loss(LOGITS, positives, weight=0.25, focus=2.0)
    wanted = (cost(2.0) + cost(3.0) + 0.25 * sum(focused)) / 2
    assert float(loss) == pytest.approx(wanted, rel=1e-5)


def test_soft_targets_are_summed_over_a_photo_and_their_mean_is_over_the_photos() -> None:
    likely = torch.tensor([[0.9, 0.2, 0.5], [0.4, 1.0, 0.0]])
    pairs = zip(LOGITS.flatten().tolist(), likely.flatten().tolist(), strict=True)
    wanted = sum(share * cost(logit) + (1 - share) * cost(-logit) for logit, share in pairs) / 2
    assert float(soft_target_loss(LOGITS, likely)) == pytest.approx(wanted, rel=1e-5)


def test_ranking_and_classifier_are_means_over_names_and_over_photos() -> None:
    def diverge(logits: list[float], wanted: list[float]) -> float:
        total = sum(map(math.exp, logits))
        logs = [logit - math.log(total) for logit in logits]
        return sum(p * (math.log(p) - q) for p, q in zip(wanted, logs, strict=True))

    # Of two photos, standardised logits are 1 / sqrt(2) from their mean.
    share = 1 / (1 + math.exp(-2 * 1.5 / math.sqrt(2)))
    teacher = torch.tensor([[3.0, 0, 5], [1, 8, 2]])
    shares = [[share, 1 - share], [1 - share, share], [share, 1 - share]]
    names = zip(LOGITS.T.tolist(), shares, strict=True)
    wanted = sum(diverge(logits, told) for logits, told in names) / 3
    assert float(ranking_loss(LOGITS, teacher, 1.5)) == pytest.approx(wanted, rel=1e-4)

    likely = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    photos = zip(LOGITS.tolist(), likely.tolist(), strict=True)
    wanted = sum(diverge(logits, told) for logits, told in photos) / 2
    assert float(classifier_loss(LOGITS, likely)) == pytest.approx(wanted, rel=1e-4)


def test_ranking_compares_the_photos_of_one_name_only() -> None:
    torch.manual_seed(0)
    teacher = torch.randn(8, 4)
    deviation, mean = torch.std_mean(teacher, dim=0)
    matched = (teacher - mean) / deviation * 1.5
    # Whatever is added to a name's logits on all photos does not change their order.
    for student in (matched, matched + torch.randn(4)):
        assert float(ranking_loss(student, teacher, 1.5)) == pytest.approx(0.0, abs=1e-4)
    assert float(ranking_loss(matched.flip(0), teacher, 1.5)) > 0.1


def test_half_of_the_columns_are_the_most_probable() -> None:
    torch.manual_seed(0)
    probabilities = torch.zeros(2, 100)
    probabilities[0, 7], probabilities[1, 93] = 0.9, 0.8
    for _ in range(5):
        chosen = choose_columns(probabilities, 4).tolist()
        assert {7, 93} <= set(chosen)
        assert len(chosen) <= 4
        assert chosen == sorted(set(chosen))
    assert choose_columns(probabilities, 500).tolist() == list(range(100))


def test_captions_are_matched_with_their_photos_both_ways() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 3)
    matches = torch.eye(4)[:, [2, 0, 3]]  # the second photo has no caption
    photos = torch.nn.functional.cross_entropy(logits.T, torch.tensor([2, 0, 3]))
    captions = torch.nn.functional.cross_entropy(logits[[2, 0, 3]], torch.tensor([0, 1, 2]))
    assert float(matching_loss(logits, matches)) == pytest.approx(float(photos + captions) / 2)
    assert float(matching_loss(torch.zeros(4, 0), torch.zeros(4, 0))) == 0


def test_queries_get_noise_and_random_ones_are_absent() -> None:
    torch.manual_seed(0)
    embeddings, targets = torch.randn(6, 5) + 3, torch.randint(0, 2, (4, 6)).float()
    queries, wanted = augment_queries(embeddings, targets, num_random=8, noise=0.1)
    assert (queries.shape, wanted.shape) == ((14, 5), (4, 14))
    torch.testing.assert_close(wanted[:, :6], targets)
    assert not wanted[:, 6:].any()
    assert 0 < (queries[:6] - embeddings).abs().mean() < 0.3
    assert (queries[6:].mean(dim=0) - 3).abs().max() < 2
    queries, wanted = augment_queries(embeddings, targets, num_random=0, noise=0.0)
    torch.testing.assert_close((queries, wanted), (embeddings, targets))
