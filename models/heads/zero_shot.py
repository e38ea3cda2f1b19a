"""Zero-shot ML-Decoder: logits of any label, from the embedding of its text.

In: tokens float [B, S, C] (or a feature map) and label embeddings [L, E]. Out: logits [B, L].
Written from the paper (arXiv 2111.12933, section 3.4): text embedding -> linear -> ReLU ->
label query; the decoder of `ml_decoder.py`; one pooling shared by all labels, since a label
that was never trained can have none of its own. What depends on a label alone is a module of
its own, which a service runs once a label. Not in the paper: where the configuration has
prototypes, their votes (`name_votes.py`) are added to each logit once training is over. Next:
`network.py`; `train_open` trains it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.config import ZeroShotMLDecoderConfig
from models.heads.ml_decoder import DecoderLayer
from models.heads.name_votes import NameVotes
from models.heads.tokens import to_tokens


class ZeroShotMLDecoder(nn.Module):
    """The head for open labels.

    Attributes:
        config: what was built.
        votes: the classifier whose names' votes are added to the logits; None without prototypes.
    """

    def __init__(self, config: ZeroShotMLDecoderConfig) -> None:
        """Builds the projection of the text, the decoder layer and the shared pooling."""
        super().__init__()
        self.config = config
        width = config.decoder_width
        self.project = nn.Linear(config.embedding_width, width)
        self.embed = nn.Linear(config.encoder_width, width)
        self.layer = DecoderLayer(config)
        self.pool = nn.Linear(width, 1)
        self.votes: NameVotes | None = None
        if config.num_prototypes:
            self.votes = NameVotes(
                config.encoder_width, config.num_prototypes, config.embedding_width
            )

    def encode_labels(self, embeddings: Tensor) -> Tensor:
        """Computes all that depends on the labels alone.

        Args:
            embeddings: float [L, E].

        Returns:
            Label queries float [L, K]: the normalised queries [L, D] and their projections for
            the attention [L, D] side by side; with prototypes, their votes [L, P] follow.
        """
        hidden = self.layer.prepare(functional.relu(self.project(embeddings)))  # [L, D]
        parts = [hidden, self.layer.attention.project(hidden)]
        if self.votes is not None:
            parts.append(self.votes.weigh(functional.normalize(embeddings, dim=-1)))
        return torch.cat(parts, dim=-1)

    def score(self, features: Tensor, queries: Tensor) -> Tensor:
        """Scores encoded labels; each label's logit is independent of the others.

        Args:
            features: float tokens [B, S, C] or feature map [B, C, H, W].
            queries: float [L, K], of `encode_labels`.

        Returns:
            Logits float [B, L].
        """
        return self.recall(to_tokens(features), self.remember(features), queries)

    def remember(self, features: Tensor) -> Tensor:
        """Maps tokens float [B, S, C] or a feature map to the memory that labels attend to.

        Returns:
            float [B, S, D].
        """
        return functional.relu(self.embed(to_tokens(features)))

    def recall(self, tokens: Tensor, memory: Tensor, queries: Tensor) -> Tensor:
        """Maps tokens float [B, S, C], their memory [B, S, D] and queries [L, K] to logits."""
        width = self.config.decoder_width
        hidden = queries[:, :width].unsqueeze(0)  # [1, L, D]
        projected = queries[:, width : 2 * width].unsqueeze(0)  # [1, L, D]
        decoded = self.layer.decode(hidden, projected, memory)  # [B, L, D]
        logits: Tensor = self.pool(decoded).squeeze(-1)
        # In training the decoder stands alone: it would lean on what it is given, and two
        # views that were found apart add up to more.
        if self.votes is None or self.training:
            return logits
        added: Tensor = logits + self.votes(tokens, queries[:, 2 * width :])
        return added

    def forward(self, features: Tensor, embeddings: Tensor) -> Tensor:
        """Maps features and label embeddings float [L, E] to logits [B, L]."""
        return self.score(features, self.encode_labels(embeddings))


class LabelEncoder(nn.Module):
    """`encode_labels` as a module that can be traced."""

    def __init__(self, head: ZeroShotMLDecoder) -> None:
        """Wraps a head."""
        super().__init__()
        self.head = head

    def forward(self, embeddings: Tensor) -> Tensor:
        """Maps embeddings float [L, E] to label queries [L, K]."""
        return self.head.encode_labels(embeddings)


class LabelScorer(nn.Module):
    """`score` as a module that can be traced."""

    def __init__(self, head: ZeroShotMLDecoder) -> None:
        """Wraps a head."""
        super().__init__()
        self.head = head

    def forward(self, tokens: Tensor, queries: Tensor) -> Tensor:
        """Maps tokens float [B, S, C] and label queries [L, K] to logits [B, L]."""
        return self.head.score(tokens, queries)


class LabelScorerWithMemory(nn.Module):
    """The same, with the memory beside the logits."""

    def __init__(self, head: ZeroShotMLDecoder) -> None:
        """Wraps a head."""
        super().__init__()
        self.head = head

    def forward(self, tokens: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Maps tokens float [B, S, C] and queries [L, K] to logits [B, L] and memory [B, S, D]."""
        memory = self.head.remember(tokens)
        return self.head.recall(tokens, memory, queries), memory
