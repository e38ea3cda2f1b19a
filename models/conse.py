"""ConSE: any label's score from a classifier of other names (Norouzi et al., arXiv 1312.5650).

In: tokens float [B, S, C] and label embeddings [L, E]. Out: cosines [B, L], in -1..1. The
classifier's probabilities average the embeddings of the names it knows into an embedding of
the photo; a label scores by its cosine with that. No label has to be trained. On its own, with
an untouched pretrained classifier, it is the baseline for open labels; `zero_shot.py` may add it
to its logits. Differences from the paper: all names are averaged, not the ten most probable, and
the mean over photos may be taken off, so that a label's scores lie around 0.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional


class ConSE(nn.Module):
    """A linear classifier of P names over pooled tokens, and the embeddings of the names.

    Attributes:
        classifier: pooled tokens [B, C] -> logits [B, P].
        names: embeddings of the classifier's names, float [P, E] of length 1.
        mean: what is taken off a photo's embedding, float [E]; see `center`.
    """

    names: Tensor
    mean: Tensor

    def __init__(self, encoder_width: int, num_names: int, embedding_width: int) -> None:
        """Builds a random classifier; the embeddings are to be filled in.

        Args:
            encoder_width: C.
            num_names: P.
            embedding_width: E.
        """
        super().__init__()
        self.classifier = nn.Linear(encoder_width, num_names)
        self.register_buffer("names", torch.zeros(num_names, embedding_width))
        self.register_buffer("mean", torch.zeros(embedding_width))

    def classify(self, tokens: Tensor) -> Tensor:
        """Maps tokens float [B, S, C] to the classifier's logits [B, P]."""
        logits: Tensor = self.classifier(tokens.mean(dim=1))
        return logits

    @torch.no_grad()
    def center(self, batches: Iterable[Tensor]) -> None:
        """Makes the mean embedding of some photos the zero that scores are counted from.

        That changes no label's ranking of photos; but without it a label scores high on every
        photo where its name is close to many others.

        Args:
            batches: tokens float [B, S, C] of at least one photo.
        """
        found = torch.cat([embed(self.classify(tokens), self.names) for tokens in batches])
        self.mean.copy_(found.mean(dim=0))

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Scores labels.

        Args:
            tokens: float [B, S, C].
            labels: embeddings float [L, E] of length 1.

        Returns:
            Cosines float [B, L], less those of the mean.
        """
        return (embed(self.classify(tokens), self.names) - self.mean) @ labels.T


def embed(logits: Tensor, names: Tensor) -> Tensor:
    """Embeds photos: the mean of the names' embeddings by what a classifier says.

    Args:
        logits: of the classifier, float [B, P].
        names: embeddings of its names, float [P, E] of length 1.

    Returns:
        Float [B, E] of length 1.
    """
    return functional.normalize(logits.softmax(dim=-1) @ names, dim=-1)


def compare(logits: Tensor, names: Tensor, labels: Tensor) -> Tensor:
    """Computes ConSE's scores from what a classifier says.

    Args:
        logits: of the classifier, float [B, P].
        names: embeddings of its names, float [P, E] of length 1.
        labels: embeddings of the labels to score, float [L, E] of length 1.

    Returns:
        Cosines float [B, L], in -1..1.
    """
    return embed(logits, names) @ labels.T
