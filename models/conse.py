"""ConSE: any label's score from a classifier of other names (Norouzi et al., arXiv 1312.5650).

In: what a classifier says of photos, embeddings of its names and of labels. Out: cosines [B, L].
The classifier's probabilities average the embeddings of its names into an embedding of the photo; a
label scores by its cosine with that. No label has to be trained: with an untouched pretrained
classifier it is the baseline for open labels. All names are averaged, not the ten most probable of
the paper. Next: `evaluate_open.py`.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def compare(logits: Tensor, names: Tensor, labels: Tensor) -> Tensor:
    """Computes ConSE's scores from what a classifier says.

    Args:
        logits: of the classifier, float [B, P].
        names: embeddings of its names, float [P, E] of length 1.
        labels: embeddings of the labels to score, float [L, E] of length 1.

    Returns:
        Cosines float [B, L], in -1..1.
    """
    return functional.normalize(logits.softmax(dim=-1) @ names, dim=-1) @ labels.T
