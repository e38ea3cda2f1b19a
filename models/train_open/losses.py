"""What an open head is told: labels, concepts, the teacher's probabilities and its ranking.

In: logits float [B, ...] and what is known. Out: one number each, a sum over labels and a mean
over photos. The labels' own loss is timm's asymmetric one. Next: `loop.py` adds them up.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def weak_negative_loss(logits: Tensor, positives: Tensor, weight: float, focus: float) -> Tensor:
    """Cross-entropy where a 0 is unknown and counts as a weak negative.

    "Weak assume negative" of Cole et al. (arXiv 2106.09708, section 4), with the focus of
    the focal loss (arXiv 1708.02002) on what is not yet taken for absent.

    Args:
        logits: float [B, M].
        positives: 0/1 float [B, M].
        weight: of the unknown, 0..1.
        focus: exponent, 0 for none.
    """
    present = positives * functional.logsigmoid(logits)
    absent = (1 - positives) * functional.logsigmoid(-logits) * logits.sigmoid().pow(focus)
    return -(present + weight * absent).sum(dim=1).mean()


def soft_target_loss(logits: Tensor, probabilities: Tensor) -> Tensor:
    """Binary cross-entropy with the teacher's probabilities as targets, float [B, P] both."""
    found = functional.binary_cross_entropy_with_logits(logits, probabilities, reduction="none")
    return found.sum(dim=1).mean()


def ranking_loss(logits: Tensor, teacher: Tensor, sharpness: float) -> Tensor:
    """Distils which photos of the batch show a name the most.

    Each name's teacher logits, standardised over the photos, become a distribution over the
    photos; the student's column is held against it (Kullback-Leibler). It says much of names
    that no photo of the batch shows clearly, where probabilities are all near 0.

    Args:
        logits: float [B, P], B at least 2.
        teacher: the teacher's logits, float [B, P].
        sharpness: of the distributions; more looks at the foremost photos only.

    Returns:
        Mean over the names.
    """
    deviation, mean = torch.std_mean(teacher, dim=0)
    wanted = (sharpness * (teacher - mean) / (deviation + 1e-5)).softmax(dim=0)
    found = logits.log_softmax(dim=0)
    return functional.kl_div(found, wanted, reduction="sum") / logits.shape[1]


def classifier_loss(logits: Tensor, probabilities: Tensor) -> Tensor:
    """Distils the teacher's distribution over its names, float [B, P] both, into a classifier."""
    return functional.kl_div(logits.log_softmax(dim=1), probabilities, reduction="batchmean")


def matching_loss(logits: Tensor, matches: Tensor) -> Tensor:
    """Tells captions and photos of a batch which belong together.

    The symmetric cross-entropy of CLIP (arXiv 2103.00020, section 2.3): each caption is to find
    its photo among the batch's, and each photo its caption.

    Args:
        logits: float [B, T].
        matches: 0/1 float [B, T], one 1 in each column; a row without any has no caption.

    Returns:
        Mean over the captions, of the two directions; 0 where there is no caption.
    """
    if not matches.any():
        return logits.sum() * 0
    photos = (logits.log_softmax(dim=0) * matches).sum()
    captions = (logits.log_softmax(dim=1) * matches).sum()
    return -(photos + captions) / (2 * matches.sum())


def choose_columns(probabilities: Tensor, count: int) -> Tensor:
    """Chooses names of the teacher's to train a step on.

    Args:
        probabilities: of the teacher over the batch, float [B, P].
        count: how many; all P where there are fewer.

    Returns:
        Ascending columns int64 [<= count]: half of them the names most probable in any of the
        photos, half at random; those that are both stand once.
    """
    total = probabilities.shape[1]
    likely = probabilities.amax(dim=0).topk(min(count // 2, total)).indices
    others = torch.randperm(total, device=probabilities.device)[: count - len(likely)]
    chosen: Tensor = torch.cat([likely, others]).unique()
    return chosen
