"""Text towers: token ids of any length -> embeddings, truncated and padded as in training."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import CLIPModel, SiglipModel


class SiglipTexts(nn.Module):
    """SigLIP reads a fixed number of tokens, padding too, and pools the last one."""

    def __init__(self, model: SiglipModel, pad_id: int) -> None:
        super().__init__()
        self.body = model.text_model
        self.pad_id = pad_id
        self.max_tokens = self.body.embeddings.position_embedding.num_embeddings

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Maps int64 [L, T] twice (mask: 1 token, 0 padding) to embeddings [L, E] of length 1."""
        count = attention_mask.sum(dim=1, keepdim=True)
        place = torch.arange(self.max_tokens).unsqueeze(0)
        # A longer text ends in its end token, as a truncated one does.
        source = torch.where(
            place < self.max_tokens - 1, torch.minimum(place, count - 1), count - 1
        )
        ids = torch.where(place < count, input_ids.gather(1, source), self.pad_id)
        hidden = self.body.encoder(inputs_embeds=self.body.embeddings(ids)).last_hidden_state
        pooled = self.body.head(self.body.final_layer_norm(hidden[:, -1]))
        return functional.normalize(pooled, dim=-1)


class ClipTexts(nn.Module):
    """CLIP pools its end token, the last one; tokens see only those before them."""

    def __init__(self, model: CLIPModel) -> None:
        super().__init__()
        self.body = model.text_model
        self.project = model.text_projection
        self.max_tokens = self.body.embeddings.position_embedding.num_embeddings

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Maps int64 [L, T] twice (mask: 1 token, 0 padding) to embeddings [L, E] of length 1."""
        count = attention_mask.sum(dim=1, keepdim=True)
        end = (count - 1).clamp(max=self.max_tokens - 1)
        place = torch.arange(input_ids.shape[1]).unsqueeze(0)
        # Places behind the end may have any token: none before them sees it.
        ids = torch.where(place == end, input_ids.gather(1, count - 1), input_ids)
        embed = self.body.embeddings
        hidden = embed.token_embedding(ids)
        hidden = hidden + embed.position_embedding(place.clamp(max=self.max_tokens - 1))
        later = place > place.transpose(0, 1)  # [T, T]
        mask = later.to(hidden.dtype) * torch.finfo(hidden.dtype).min
        hidden = self.body.encoder(inputs_embeds=hidden, attention_mask=mask[None, None])
        hidden = hidden.last_hidden_state
        pooled = hidden.gather(1, end.unsqueeze(-1).expand(-1, -1, hidden.shape[-1])).squeeze(1)
        embeddings = self.project(self.body.final_layer_norm(pooled))
        return functional.normalize(embeddings, dim=-1)
