"""Query2Label's laws: positions, what batches share, every variant of its layers."""

import itertools

import numpy as np
import pytest
import torch

from models.config import Query2LabelConfig, TransformerDecoderConfig
from models.query2label import Query2Label, TransformerDecoder, sine_positions
from tests.goldens import FOLDER

WIDTHS = {"encoder_width": 12, "decoder_width": 16, "num_heads": 4, "feedforward_width": 24}
# Targets start at zero, so what the first self-attention makes of them is constant.
STARTS_AT_ZERO = ("decoder.0.self_attention", "decoder.0.norm1")


def build(**changes: object) -> Query2Label:
    torch.manual_seed(0)
    values = {"num_classes": 5, "grid": (2, 3), **WIDTHS, **changes}
    return Query2Label(Query2LabelConfig.model_validate(values)).eval()


@pytest.mark.parametrize("name", ["pe_128_224", "pe_256_448"])
def test_positions_equal_the_authors(name: str) -> None:
    with np.load(FOLDER / "q2l_sine_pe.npz") as file:
        (table,) = file[name]
    width, rows, columns = table.shape
    found = sine_positions(width, (rows, columns))
    expected = torch.from_numpy(table).flatten(1).T
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("pre_norm", "encoders", "own"),
    list(itertools.product((False, True), (0, 2), ((False, False), (True, True), (False, True)))),
)
def test_a_row_of_a_batch_equals_the_image_alone(
    pre_norm: bool, encoders: int, own: tuple[bool, ...]
) -> None:
    head = build(pre_norm=pre_norm, num_encoder_layers=encoders, self_attention=own)
    features = torch.randn(4, 12, 2, 3)
    with torch.inference_mode():
        together = head(features)
        alone = torch.cat([head(row.unsqueeze(0)) for row in features])
    assert together.shape == (4, 5)
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


def test_places_matter_to_query2label_and_not_to_the_plain_decoder() -> None:
    tokens = torch.randn(2, 6, 12)
    plain = TransformerDecoder(TransformerDecoderConfig(num_classes=5, **WIDTHS)).eval()
    with torch.inference_mode():
        torch.testing.assert_close(plain(tokens), plain(tokens.flip(1)), rtol=1e-4, atol=1e-5)
        head = build()
        assert not torch.allclose(head(tokens), head(tokens.flip(1)), atol=1e-3)


def test_every_parameter_gets_a_gradient() -> None:
    head = build(self_attention=(True, True)).train()
    head(torch.randn(4, 6, 12)).square().mean().backward()
    for name, parameter in head.named_parameters():
        # A shift of all keys cancels in the softmax.
        if not name.endswith("key.bias") and not name.startswith(STARTS_AT_ZERO):
            assert parameter.grad is not None, name
            assert parameter.grad.any(), name


def test_tokens_of_another_width_need_a_projection() -> None:
    with pytest.raises(ValueError, match="need a projection"):
        build(input_projection=False)
    assert build(input_projection=False, encoder_width=16)
