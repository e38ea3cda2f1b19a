"""Attention's two orders of multiplication gather the same."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from models.heads.attention import Attention
from tests.models import shake

WIDTH, HEADS = 16, 4


@given(queries=st.integers(1, 12), tokens=st.integers(1, 9), batch=st.integers(1, 3))
@torch.inference_mode()
def test_fixed_queries_gather_the_same_as_each_images_own(
    queries: int, tokens: int, batch: int
) -> None:
    attention = shake(Attention(WIDTH, HEADS, dropout=0.0)).eval()
    asked = torch.randn(1, queries, WIDTH)
    keys, values = torch.randn(2, batch, tokens, WIDTH)
    fixed = attention(asked, keys, values, fixed=True)
    own = attention.attend(attention.project(asked).expand(batch, -1, -1), keys, values)
    torch.testing.assert_close(fixed, own, rtol=1e-4, atol=1e-5)


def test_training_uses_every_parameter_even_on_a_single_image() -> None:
    attention = Attention(WIDTH, HEADS, dropout=0.0).train()
    attention(*torch.randn(3, 1, 5, WIDTH)).square().sum().backward()
    # Training on several GPUs fails on a parameter that no result depends on.
    assert all(parameter.grad is not None for parameter in attention.parameters())
