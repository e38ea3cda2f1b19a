"""RAM and RAM++ (arXiv 2306.03514, 2310.15200): label texts attend to image tokens.

Two post-norm layers of cross-attention and feed-forward, written from the maths. RAM++ first weighs
a label's descriptions by their likeness to the photo, so its label queries differ by photo.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.config import RamConfig
from models.heads.attention import Attention, to_tokens
from models.heads.open_head import OpenHead

_EPSILON = 1e-12
_MISSING = -1e4  # score of a missing description; a float16 graph has no larger number


class Ram(OpenHead):
    """Logits of the file's tags, or of any labels from CLIP text embeddings."""

    config: RamConfig
    labels: Tensor  # the tags' embeddings [N, T], in RAM++ [N, descriptions, T]

    def __init__(self, config: RamConfig) -> None:
        super().__init__()
        self.config = config
        width, text_width = config.decoder_width, config.text_width
        self.embed = (
            nn.Linear(config.encoder_width, text_width)
            if config.image_projection
            else nn.Identity()
        )
        several = () if config.num_descriptions is None else (config.num_descriptions,)
        labels = torch.randn(config.num_classes, *several, text_width)
        self.register_buffer("labels", functional.normalize(labels, dim=-1))
        self.log_scale = nn.Parameter(torch.tensor(-math.log(0.07))) if several else None
        self.project = nn.Linear(text_width, width)
        self.layers = nn.ModuleList(TaggingLayer(config) for _ in range(config.num_layers))
        self.pool = nn.Linear(width, 1)

    def forward(self, features: Tensor, embeddings: Tensor | None = None) -> Tensor:
        """Maps features to logits [B, N], or with label embeddings to [B, L].

        Features are tokens [B, S, C] or a map [B, C, H, W]; embeddings [L, T], in RAM++
        [L, descriptions, T] or these flat. Descriptions of zeros are left out.
        """
        return super().forward(features, self.labels if embeddings is None else embeddings)

    def encode_labels(self, embeddings: Tensor) -> Tensor:
        """Maps label embeddings [L, E] to label queries [L, K]; RAM++'s are the embeddings."""
        return self._project(embeddings) if self.log_scale is None else embeddings

    def remember(self, features: Tensor) -> Tensor:
        """Maps features to projected tokens [B, 1 + S, T], first the class token, their mean."""
        tokens: Tensor = self.embed(to_tokens(features))
        if not self.config.image_projection:
            return tokens
        return torch.cat([tokens.mean(dim=1, keepdim=True), tokens], dim=1)

    def recall(self, tokens: Tensor, memory: Tensor, queries: Tensor) -> Tensor:  # noqa: ARG002
        """Maps the memory [B, 1 + S, T] and label queries [L, K] to logits [B, L]."""
        if self.log_scale is None:
            hidden = queries.unsqueeze(0)  # [1, L, D]
        else:
            hidden = self._project(self.weigh(memory[:, 0], queries))  # [B, L, D]
        for layer in self.layers:
            hidden = layer(hidden, memory)
        return self.pool(hidden).squeeze(-1)

    def weigh(self, image: Tensor, embeddings: Tensor) -> Tensor:
        """Averages descriptions by their likeness to the class tokens [B, T]: [B, L, T]."""
        assert self.log_scale is not None
        texts = embeddings
        if texts.dim() == 2:
            texts = texts.unflatten(1, (-1, self.config.text_width))  # [L, descriptions, T]
        image = functional.normalize(image, dim=-1) * self.log_scale.exp()
        likeness = texts @ image.T  # [L, descriptions, B]
        missing = (texts == 0).all(dim=-1, keepdim=True)
        weights = likeness.masked_fill(missing, _MISSING).softmax(dim=1)
        # `texts` is not transposed: a graph would store the 479 MB of the authors' tags twice.
        return (weights.transpose(1, 2) @ texts).transpose(0, 1)

    def _project(self, embeddings: Tensor) -> Tensor:
        return functional.relu(self.project(embeddings))  # [..., T] -> [..., D]


class TaggingLayer(nn.Module):
    """A decoder layer without self-attention; norms come after each step."""

    def __init__(self, config: RamConfig) -> None:
        super().__init__()
        width, inner = config.decoder_width, config.feedforward_width
        self.attention = Attention(width, config.num_heads, memory_width=config.text_width)
        self.norm1 = nn.LayerNorm(width, _EPSILON)
        self.linear1 = nn.Linear(width, inner)
        self.linear2 = nn.Linear(inner, width)
        self.norm2 = nn.LayerNorm(width, _EPSILON)

    def forward(self, queries: Tensor, tokens: Tensor) -> Tensor:
        """Maps queries [1 or B, L, D] over tokens [B, S, T] to [B, L, D]."""
        queries = self.norm1(queries + self.attention(queries, tokens, tokens))
        return self.norm2(queries + self.linear2(functional.gelu(self.linear1(queries))))
