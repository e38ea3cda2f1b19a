"""CLIP's and SigLIP's towers, of `transformers`' own layers: images -> tokens, texts -> embeddings.

The first token is the image's embedding, gathered by one query: SigLIP's pooling, CLIP's class
token. The others are each patch's part of it, attention times value along the residual path.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import CLIPModel, SiglipModel

from models.config import CosineConfig, NetworkConfig
from models.heads.cosine import CosineHead


class TowerNetwork(nn.Module):
    """The image tower (images -> tokens [B, 1 + S, E]) and the head of a whole model."""

    def __init__(self, config: NetworkConfig, model: CLIPModel | SiglipModel) -> None:
        super().__init__()
        assert isinstance(config.head, CosineConfig)
        self.config = config
        self.backbone: ClipImages | SiglipImages
        self.head = CosineHead(config.head)
        self.head.log_scale.data.copy_(model.logit_scale.squeeze())
        if isinstance(model, SiglipModel):
            self.backbone = SiglipImages(model)
            self.head.bias.data.copy_(model.logit_bias.squeeze())
        else:
            self.backbone = ClipImages(model)

    def forward(self, images: Tensor, embeddings: Tensor) -> Tensor:
        """Maps normalised images [B, 3, H, W] and embeddings [L, E] to logits [B, L]."""
        return self.head(self.backbone(images), embeddings)


class OneQuery(nn.Module):
    """Attention of one query, which keeps each token's part of the result."""

    def __init__(self, query: nn.Linear, key: nn.Linear, value: nn.Linear, num_heads: int) -> None:
        super().__init__()
        self.query, self.key, self.value = query, key, value
        self.heads = (num_heads, value.out_features // num_heads)

    def forward(self, query: Tensor, tokens: Tensor) -> Tensor:
        """Maps queries [1 or B, C] and tokens [B, S, C] to attention times value [B, S, C].

        Their sum is the attention's result without the value's bias.
        """
        queries = self.query(query).unflatten(-1, self.heads) * self.heads[1] ** -0.5
        keys = self.key(tokens).unflatten(-1, self.heads)  # [B, S, heads, C / heads]
        weights = (keys * queries.unsqueeze(1)).sum(dim=-1, keepdim=True).softmax(dim=1)
        values = functional.linear(tokens, self.value.weight).unflatten(-1, self.heads)
        return (weights * values).flatten(2)


class SiglipImages(nn.Module):
    """SigLIP: attention pooling of the last layer's patches."""

    prefix_tokens = 0

    def __init__(self, model: SiglipModel) -> None:
        super().__init__()
        self.body = model.vision_model
        pooling = self.body.head
        self.probe = nn.Parameter(pooling.probe[:, 0])  # [1, C]
        packed = pooling.attention.in_proj_weight, pooling.attention.in_proj_bias
        query, key, value = map(_make_linear, *(packed_tensor.chunk(3) for packed_tensor in packed))
        self.attention = OneQuery(query, key, value, pooling.attention.num_heads)
        self.out = pooling.attention.out_proj
        self.norm, self.mlp = pooling.layernorm, pooling.mlp

    def forward(self, images: Tensor) -> Tensor:
        """Maps normalised images [B, 3, H, W] to tokens [B, 1 + S, E]."""
        hidden = self.body.encoder(inputs_embeds=self.body.embeddings(images)).last_hidden_state
        parts = self.attention(self.probe, self.body.post_layernorm(hidden))
        whole = self.out(parts.sum(dim=1) + self.attention.value.bias)
        whole = whole + self.mlp(self.norm(whole))
        return torch.cat([whole.unsqueeze(1), functional.linear(parts, self.out.weight)], dim=1)


class ClipImages(nn.Module):
    """CLIP: the class token, projected; its last layer runs for the class token alone."""

    prefix_tokens = 0
    carry: Tensor

    def __init__(self, model: CLIPModel) -> None:
        super().__init__()
        self.body = model.vision_model
        *layers, self.last = self.body.encoder.layers
        self.layers = nn.ModuleList(layers)
        self.project = model.visual_projection
        attention = self.last.self_attn
        self.attention = OneQuery(
            attention.q_proj, attention.k_proj, attention.v_proj, attention.num_heads
        )
        with torch.no_grad():
            gains = self.project.weight * self.body.post_layernorm.weight
            self.register_buffer("carry", gains @ attention.out_proj.weight)  # [E, C]

    def forward(self, images: Tensor) -> Tensor:
        """Maps normalised images [B, 3, H, W] to tokens [B, 1 + S, E]."""
        hidden = self.body.pre_layrnorm(self.body.embeddings(images))
        for layer in self.layers:
            hidden = layer(hidden, None)
        tokens = self.last.layer_norm1(hidden)
        parts = self.attention(tokens[:, 0], tokens)
        gathered = parts.sum(dim=1) + self.attention.value.bias
        whole = hidden[:, 0] + self.last.self_attn.out_proj(gathered)
        whole = whole + self.last.mlp(self.last.layer_norm2(whole))
        whole = self.project(self.body.post_layernorm(whole))
        return torch.cat([whole.unsqueeze(1), functional.linear(parts[:, 1:], self.carry)], dim=1)


def _make_linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
    return layer


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
        positions = torch.arange(self.max_tokens).unsqueeze(0)
        # A longer text ends in its end token, as a truncated one does.
        source = torch.where(
            positions < self.max_tokens - 1, torch.minimum(positions, count - 1), count - 1
        )
        ids = torch.where(positions < count, input_ids.gather(1, source), self.pad_id)
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
        positions = torch.arange(input_ids.shape[1]).unsqueeze(0)
        # Causal attention: tokens after the end have no effect.
        ids = torch.where(positions == end, input_ids.gather(1, count - 1), input_ids)
        embed = self.body.embeddings
        hidden = embed.token_embedding(ids)
        hidden = hidden + embed.position_embedding(positions.clamp(max=self.max_tokens - 1))
        later = positions > positions.transpose(0, 1)  # [T, T]
        mask = later.to(hidden.dtype) * torch.finfo(hidden.dtype).min
        hidden = self.body.encoder(inputs_embeds=hidden, attention_mask=mask[None, None])
        hidden = hidden.last_hidden_state
        pooled = hidden.gather(1, end.unsqueeze(-1).expand(-1, -1, hidden.shape[-1])).squeeze(1)
        embeddings = self.project(self.body.final_layer_norm(pooled))
        return functional.normalize(embeddings, dim=-1)
