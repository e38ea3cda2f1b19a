"""Name votes: the names of a classifier vote for any label, by their distance to it.

p(label | photo) is the sum over names of p(name | photo) p(label | name), and the last factor a
softmax over the names' cosines with the label: ConSE (arXiv 1312.5650) averages all names, here
only the nearest count. Scores are relative to the mean photo, so they can be added to a logit.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional


class NameVotes(nn.Module):
    """A linear classifier of P names over pooled tokens, and the names' embeddings."""

    names: Tensor  # embeddings [P, E] of length 1, to be filled in
    prior: Tensor  # mean probability of each name over photos, [P]; see `center`
    sharpness: Tensor  # scales the cosines; at higher values fewer, nearer names vote

    def __init__(self, encoder_width: int, num_names: int, embedding_width: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(encoder_width, num_names)
        self.register_buffer("names", torch.zeros(num_names, embedding_width))
        self.register_buffer("prior", torch.full((num_names,), 1 / num_names))
        self.register_buffer("sharpness", torch.tensor(20.0))

    def forward(self, tokens: Tensor, votes: Tensor) -> Tensor:
        """Maps tokens [B, S, C] and votes [L, P] of `weigh` to log-ratios [B, L], at least -14.

        The ratio is the votes in the photo over the votes in the mean photo.
        """
        return to_log(self.read(tokens) @ votes.T)

    def read(self, tokens: Tensor) -> Tensor:
        """Maps tokens [B, S, C] to the names' probabilities [B, P]."""
        return functional.softmax(self.classify(tokens), dim=-1)

    def classify(self, tokens: Tensor) -> Tensor:
        """Maps tokens [B, S, C] to the classifier's logits [B, P]."""
        return self.classifier(tokens.mean(dim=1))

    def weigh(self, labels: Tensor) -> Tensor:
        """Maps label embeddings [L, E] of length 1 to votes [L, P], divided by the mean photo's."""
        votes = (self.sharpness * (labels @ self.names.T)).softmax(dim=-1)
        return votes / (votes @ self.prior).unsqueeze(-1)

    @torch.no_grad()
    def center(self, batches: Iterable[Tensor]) -> None:
        """Sets the prior to the mean over photos, given as tokens [B, S, C] a batch.

        Without it a label with many near names scores high on every photo.
        """
        self.prior.copy_(torch.cat([self.read(tokens) for tokens in batches]).mean(dim=0))


def to_log(ratios: Tensor) -> Tensor:
    """Returns the logarithm of ratios, at least -14: no probable name is near."""
    return ratios.clamp_min(1e-6).log()
