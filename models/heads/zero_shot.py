"""Zero-shot ML-Decoder (arXiv 2111.12933, section 3.4): logits of any label from its embedding.

Text embedding -> linear -> ReLU -> label query; then the decoder layer of `ml_decoder.py` and one
pooling for all labels. Not in the paper: `name_votes.py` adds to each logit outside training.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.config import ZeroShotMLDecoderConfig
from models.heads.attention import to_tokens
from models.heads.ml_decoder import DecoderLayer
from models.heads.name_votes import NameVotes
from models.heads.open_head import OpenHead


class ZeroShotMLDecoder(OpenHead):
    """The head for open labels; `votes` is None without prototypes."""

    config: ZeroShotMLDecoderConfig

    def __init__(self, config: ZeroShotMLDecoderConfig) -> None:
        super().__init__()
        self.config = config
        width, names = config.decoder_width, config.num_prototypes
        self.project = nn.Linear(config.embedding_width, width)
        self.embed = nn.Linear(config.encoder_width, width)
        self.layer = DecoderLayer(config)
        self.pool = nn.Linear(width, 1)
        self.votes: NameVotes | None = None
        if names:
            self.votes = NameVotes(config.encoder_width, names, config.embedding_width)

    def encode_labels(self, embeddings: Tensor) -> Tensor:
        """Maps label embeddings [L, E] to label queries [L, K].

        The normalised query [D], its attention projection [D] and, with prototypes, votes [P].
        """
        hidden = self.layer.prepare(functional.relu(self.project(embeddings)))  # [L, D]
        parts = [hidden, self.layer.attention.project(hidden)]
        if self.votes is not None:
            parts.append(self.votes.weigh(functional.normalize(embeddings, dim=-1)))
        return torch.cat(parts, dim=-1)

    def remember(self, features: Tensor) -> Tensor:
        """Maps features to the memory [B, S, D] that the labels attend to."""
        return functional.relu(self.embed(to_tokens(features)))

    def recall(self, tokens: Tensor, memory: Tensor, queries: Tensor) -> Tensor:
        """Maps tokens [B, S, C], their memory [B, S, D] and queries [L, K] to logits [B, L]."""
        width = self.config.decoder_width
        hidden = queries[:, :width].unsqueeze(0)  # [1, L, D]
        projected = queries[:, width : 2 * width].unsqueeze(0)  # [1, L, D]
        logits: Tensor = self.pool(self.layer.decode(hidden, projected, memory)).squeeze(-1)
        # Training is without votes: the decoder would rely on them; independent scores add up more.
        if self.votes is None or self.training:
            return logits
        return logits + self.votes(tokens, queries[:, 2 * width :])
