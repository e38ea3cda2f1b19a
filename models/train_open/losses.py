"""Losses of an open head, sums over labels and means over photos, and the queries they compare."""

import torch
from torch import Tensor
from torch.nn import functional


def weak_negative_loss(logits: Tensor, positives: Tensor, weight: float, focus: float) -> Tensor:
    """Cross-entropy with unknown labels as weak negatives.

    "Weak assume negative" (arXiv 2106.09708, section 4), with the focal loss's exponent (arXiv
    1708.02002). Logits and positives are [B, M]; a 0 is unknown and has the weight, 0..1.
    """
    present = positives * functional.logsigmoid(logits)
    absent = (1 - positives) * functional.logsigmoid(-logits) * logits.sigmoid().pow(focus)
    return -(present + weight * absent).sum(dim=1).mean()


def soft_target_loss(logits: Tensor, probabilities: Tensor) -> Tensor:
    """Binary cross-entropy with the teacher's probabilities as targets, float [B, P] both."""
    losses = functional.binary_cross_entropy_with_logits(logits, probabilities, reduction="none")
    return losses.sum(dim=1).mean()


def ranking_loss(logits: Tensor, teacher: Tensor, sharpness: float) -> Tensor:
    """Distils how the teacher ranks the photos of a batch by a name; a mean over the names.

    The Kullback-Leibler divergence of distributions over the photos: it also trains names that no
    photo shows clearly. Logits are [B, P] both, B at least 2, the teacher's are standardised; a
    higher sharpness counts only the best-ranked photos.
    """
    deviation, mean = torch.std_mean(teacher, dim=0)
    wanted = (sharpness * (teacher - mean) / (deviation + 1e-5)).softmax(dim=0)
    logs = logits.log_softmax(dim=0)
    return functional.kl_div(logs, wanted, reduction="sum") / logits.shape[1]


def classifier_loss(logits: Tensor, probabilities: Tensor) -> Tensor:
    """Distils the teacher's distribution over its names, float [B, P] both, into a classifier."""
    return functional.kl_div(logits.log_softmax(dim=1), probabilities, reduction="batchmean")


def matching_loss(logits: Tensor, matches: Tensor) -> Tensor:
    """Symmetric cross-entropy of CLIP (arXiv 2103.00020, section 2.3) between captions and photos.

    A mean over the captions and both directions, 0 without captions. Matches are 0/1 float [B, T],
    one 1 in each column; a row of zeros has no caption.
    """
    if not matches.any():
        return logits.sum() * 0
    photos = (logits.log_softmax(dim=0) * matches).sum()
    captions = (logits.log_softmax(dim=1) * matches).sum()
    return -(photos + captions) / (2 * matches.sum())


def choose_columns(probabilities: Tensor, count: int) -> Tensor:
    """Chooses at most `count` names to train a step on, by the teacher's probabilities [B, P].

    Returns ascending columns int64: half the most probable names in any photo, half random ones.
    """
    total = probabilities.shape[1]
    likely = probabilities.amax(dim=0).topk(min(count // 2, total)).indices
    others = torch.randperm(total, device=probabilities.device)[: count - len(likely)]
    return torch.cat([likely, others]).unique()


def augment_queries(
    embeddings: Tensor, targets: Tensor, num_random: int, noise: float
) -> tuple[Tensor, Tensor]:
    """Augments the label queries of zero-shot training (arXiv 2111.12933, section 3.4).

    Maps embeddings [L, E], L at least 2, and targets [B, L] to [L + R, E] and [B, L + R]: adds
    noise, a share of the embeddings' own deviation, and R random queries with the target 0.
    """
    deviation, mean = embeddings.std(dim=0), embeddings.mean(dim=0)  # [E]
    noisy = embeddings + noise * deviation * torch.randn_like(embeddings)
    size = (num_random, embeddings.shape[1])
    random_queries = mean + deviation * torch.randn(size, device=embeddings.device)
    absent = targets.new_zeros(len(targets), num_random)
    return torch.cat([noisy, random_queries]), torch.cat([targets, absent], dim=1)
