"""Name votes: a classifier's names vote for any label, by how near they are to it.

In: tokens float [B, S, C] and label embeddings [L, E]. Out: log-ratios [B, L]. By the rule of
total probability p(label | photo) = sum over names of p(name | photo) p(name speaks of the label),
where the latter is a softmax over names of their cosine with the label. It is ConSE (`conse.py`)
with a vote for the near names alone in place of a mean of all; counted from the label's mean over
photos, it can be added to a logit. Next: `zero_shot.py`, which does.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

# A label that no probable name is near to; more would say nothing more.
_LEAST_RATIO = 1e-6


class NameVotes(nn.Module):
    """A linear classifier of P names over pooled tokens, and the embeddings of the names.

    Attributes:
        classifier: pooled tokens [B, C] -> logits [B, P].
        names: embeddings of the classifier's names, float [P, E] of length 1.
        prior: mean probability of each name over photos, float [P]; see `center`.
        sharpness: what a cosine is multiplied with before the softmax; more listens to the nearest
            names only.
    """

    names: Tensor
    prior: Tensor
    sharpness: Tensor

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
        self.register_buffer("prior", torch.full((num_names,), 1 / num_names))
        self.register_buffer("sharpness", torch.tensor(20.0))

    def classify(self, tokens: Tensor) -> Tensor:
        """Maps tokens float [B, S, C] to the classifier's logits [B, P]."""
        logits: Tensor = self.classifier(tokens.mean(dim=1))
        return logits

    @torch.no_grad()
    def center(self, batches: Iterable[Tensor]) -> None:
        """Makes the mean over some photos what a label's score is counted from.

        That changes no label's ranking of photos, but makes labels comparable: one that many names
        are near to would score high on every photo.

        Args:
            batches: tokens float [B, S, C] of at least one photo.
        """
        found = torch.cat([self.classify(tokens).softmax(dim=-1) for tokens in batches])
        self.prior.copy_(found.mean(dim=0))

    def weigh(self, labels: Tensor) -> Tensor:
        """Computes what depends on the labels alone.

        Args:
            labels: embeddings float [L, E] of length 1.

        Returns:
            The names' votes for each label, over what the label has in the mean: float [L, P].
        """
        votes = (self.sharpness * (labels @ self.names.T)).softmax(dim=-1)
        return votes / (votes @ self.prior).unsqueeze(-1)

    def forward(self, tokens: Tensor, votes: Tensor) -> Tensor:
        """Scores labels.

        Args:
            tokens: float [B, S, C].
            votes: float [L, P], of `weigh`.

        Returns:
            Log of the photo's votes over the mean photo's, float [B, L]; at least -14.
        """
        ratios = functional.softmax(self.classify(tokens), dim=-1) @ votes.T
        return ratios.clamp_min(_LEAST_RATIO).log()
