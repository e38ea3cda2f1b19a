"""One query's attention, token by token, by torch's own attention."""

import torch
from torch import nn

from models.towers import OneQuery


def test_parts_are_attention_times_value_of_each_token() -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    attention.in_proj_bias.data += torch.randn(24)
    weights, biases = attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3)
    layers = [nn.Linear(8, 8) for _ in range(3)]
    for layer, weight, bias in zip(layers, weights, biases, strict=True):
        layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
    query, tokens = torch.randn(3, 8), torch.randn(3, 5, 8)
    parts = OneQuery(*layers, num_heads=2)(query, tokens)
    output, shares = attention(query[:, None], tokens, tokens, average_attn_weights=False)
    values = (tokens @ weights[2].T).unflatten(-1, (2, 4))  # [B, S, heads, 4]
    for head in range(2):
        expected = shares[:, head, 0, :, None] * values[:, :, head]
        torch.testing.assert_close(parts[:, :, 4 * head : 4 * head + 4], expected)
    whole = attention.out_proj(parts.sum(dim=1) + biases[2])
    torch.testing.assert_close(whole, output[:, 0])
