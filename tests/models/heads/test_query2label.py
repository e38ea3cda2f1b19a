"""Query2Label's laws: what batches share, every variant of its layers."""

import pytest
import torch
from torch import Tensor

from models.config import Query2LabelConfig
from models.heads.query2label import EncoderLayer, Query2Label, QueryLayer
from tests.models.heads import WIDTHS


def build(**changes: object) -> Query2Label:
    torch.manual_seed(0)
    values = {"num_classes": 5, "grid": (2, 3), **WIDTHS, **changes}
    return Query2Label(Query2LabelConfig.model_validate(values)).eval()


def test_tokens_of_another_width_need_a_projection() -> None:
    with pytest.raises(ValueError, match="need a projection"):
        build(input_projection=False)
    assert build(input_projection=False, encoder_width=16)


def encode_as_detr(layer: EncoderLayer, tokens: Tensor, positions: Tensor) -> Tensor:
    """The steps of DETR's `forward_post` and `forward_pre`, one by one.

    Goldens check the attention itself.
    """
    if layer.pre_norm:
        normed = layer.norm1(tokens)
        tokens = tokens + layer.attention(normed + positions, normed + positions, normed)
        return tokens + layer.feedforward(layer.norm2(tokens))
    tokens = tokens + layer.attention(tokens + positions, tokens + positions, tokens)
    tokens = layer.norm1(tokens)
    return layer.norm2(tokens + layer.feedforward(tokens))


def decode_as_detr(
    layer: QueryLayer, target: Tensor, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """The same of its decoder, without self-attention if the layer has none."""
    attend, norm1 = layer.self_attention, layer.norm1
    if layer.pre_norm:
        if attend is not None and norm1 is not None:
            normed = norm1(target)
            target = target + attend(normed + queries, normed + queries, normed)
        target = target + layer.attention(layer.norm2(target) + queries, keys, values)
        return target + layer.feedforward(layer.norm3(target))
    if attend is not None and norm1 is not None:
        target = norm1(target + attend(target + queries, target + queries, target))
    target = layer.norm2(target + layer.attention(target + queries, keys, values))
    return layer.norm3(target + layer.feedforward(target))


def stir(head: torch.nn.Module) -> None:
    """Gives weights and positions values of their own: fresh norms would all be alike."""
    head.positions.normal_()
    for parameter in head.parameters():
        parameter.data = torch.randn_like(parameter) * 0.5


@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("encoders", [0, 2])
@pytest.mark.parametrize("attends", [(False, False), (True, True), (False, True)])
@torch.inference_mode()
def test_layers_take_the_steps_of_detr(
    pre_norm: bool, encoders: int, attends: tuple[bool, ...]
) -> None:
    head = build(pre_norm=pre_norm, num_encoder_layers=encoders, self_attention=attends)
    stir(head)
    assert [layer.pre_norm for layer in head.encoder] == [pre_norm] * encoders
    assert [layer.pre_norm for layer in head.decoder] == [pre_norm] * 2
    assert tuple(layer.self_attention is not None for layer in head.decoder) == attends
    features = torch.randn(3, 6, 12)
    tokens = head.embed(features)
    for layer in head.encoder:
        tokens = encode_as_detr(layer, tokens, head.positions)
    if pre_norm and encoders:
        tokens = head.encoder_norm(tokens)
    queries = head.queries.expand(3, -1, -1)
    target = torch.zeros_like(queries)
    for layer in head.decoder:
        target = decode_as_detr(layer, target, queries, tokens + head.positions, tokens)
    expected = (head.norm(target) * head.pool.weight.squeeze(-1)).sum(dim=-1) + head.pool.bias
    torch.testing.assert_close(head(features), expected, rtol=1e-4, atol=1e-4)
