"""The heads for open labels as an export and the maps use them."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from models.config import OpenHeadConfig


class OpenLabelHead(Protocol):
    """Encodes labels without an image, then scores them with one."""

    @property
    def config(self) -> OpenHeadConfig:
        """The widths of tokens, embeddings and queries."""

    def encode_labels(self, embeddings: Tensor) -> Tensor:
        """Maps label embeddings [L, E] to label queries [L, K]."""

    def score(self, features: Tensor, queries: Tensor) -> Tensor:
        """Maps tokens [B, S, C] and label queries [L, K] to logits [B, L].

        The logit of a label does not depend on the other labels.
        """


class MappedHead(OpenLabelHead, Protocol):
    """Has attention maps, which read the memory."""

    def remember(self, features: Tensor) -> Tensor:
        """Maps tokens [B, S, C] to the memory [B, S, D]."""

    def recall(self, tokens: Tensor, memory: Tensor, queries: Tensor) -> Tensor:
        """Maps tokens [B, S, C], their memory [B, S, D] and queries [L, K] to logits [B, L]."""
