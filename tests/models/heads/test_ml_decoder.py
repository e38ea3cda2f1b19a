"""ML-Decoder's laws: group pooling, query path, feature layouts."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.config import MLDecoderConfig
from models.heads.attention import to_tokens
from models.heads.ml_decoder import GroupLinear, MLDecoder


def build(num_classes: int = 7, num_groups: int | None = 3) -> MLDecoder:
    torch.manual_seed(0)
    config = MLDecoderConfig(
        num_classes=num_classes,
        encoder_width=12,
        num_groups=num_groups,
        decoder_width=16,
        num_heads=4,
        feedforward_width=24,
    )
    return MLDecoder(config).eval()


def pool_in_a_loop(pool: GroupLinear, decoded: Tensor) -> Tensor:
    """The paper's group pooling as the authors wrote it: group by group."""
    columns = [decoded[:, q, :] @ pool.weight[q] for q in range(len(pool.weight))]
    return torch.cat(columns, dim=1)[:, : pool.num_classes] + pool.bias


@given(num_classes=st.integers(1, 60), num_groups=st.integers(1, 70), batch=st.integers(1, 3))
@settings(deadline=None, max_examples=60)
def test_group_pooling_equals_its_loop(num_classes: int, num_groups: int, batch: int) -> None:
    config = MLDecoderConfig(
        num_classes=num_classes, encoder_width=4, num_groups=num_groups, decoder_width=8
    )
    pool = GroupLinear(config.num_queries, 8, config.group_size, num_classes)
    torch.nn.init.normal_(pool.bias)
    decoded = torch.randn(batch, config.num_queries, 8)
    logits = pool(decoded)
    assert logits.shape == (batch, num_classes)
    torch.testing.assert_close(logits, pool_in_a_loop(pool, decoded))


@given(num_classes=st.integers(1, 20000), num_groups=st.integers(1, 1000))
def test_groups_cover_every_class_and_none_is_empty(num_classes: int, num_groups: int) -> None:
    config = MLDecoderConfig(num_classes=num_classes, encoder_width=1, num_groups=num_groups)
    slots = config.num_queries * config.group_size
    assert slots - config.group_size < num_classes <= slots
    assert config.num_queries <= min(num_groups, num_classes)
    # The configuration of a checkpoint of used groups, as it is read.
    again = config.model_copy(update={"num_groups": config.num_queries})
    assert (again.group_size, again.num_queries) == (config.group_size, config.num_queries)


def test_9605_classes_in_200_groups_use_197() -> None:
    config = MLDecoderConfig(num_classes=9605, encoder_width=1, num_groups=200)
    assert (config.group_size, config.num_queries) == (49, 197)


def test_feature_map_and_its_tokens_give_the_same_logits() -> None:
    head = build()
    features = torch.randn(2, 12, 3, 5)
    with torch.inference_mode():
        torch.testing.assert_close(head(features), head(to_tokens(features)))


def test_features_of_two_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match="dimensions, not 2"):
        build()(torch.randn(2, 12))


def test_a_row_of_a_batch_equals_the_image_alone() -> None:
    head = build()
    tokens = torch.randn(5, 9, 12)
    with torch.inference_mode():
        together = head(tokens)
        alone = torch.cat([head(row.unsqueeze(0)) for row in tokens])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.:FutureWarning")
def test_head_that_was_traced_with_one_image_serves_any_number() -> None:
    head = build().eval()
    tokens = torch.randn(5, 9, 12)
    with torch.inference_mode():
        traced = torch.jit.trace(head, tokens[:1], check_trace=False)
        torch.testing.assert_close(traced(tokens), head(tokens), rtol=1e-5, atol=1e-5)


def test_order_of_the_tokens_does_not_matter() -> None:
    head = build()
    tokens = torch.randn(2, 9, 12)
    with torch.inference_mode():
        torch.testing.assert_close(
            head(tokens), head(tokens[:, torch.randperm(9)]), rtol=1e-4, atol=1e-5
        )


def test_labels_do_not_attend_to_each_other() -> None:
    head = build(num_classes=6, num_groups=None)
    tokens = torch.randn(2, 9, 12)
    with torch.inference_mode():
        before = head(tokens)
        head.queries[2] += torch.randn(16)  # a shift of all alike would vanish in the norm
        after = head(tokens)
    others = [0, 1, 3, 4, 5]
    torch.testing.assert_close(after[:, others], before[:, others])
    assert not torch.allclose(after[:, 2], before[:, 2])


def test_queries_are_fixed() -> None:
    head = build()
    assert "queries" not in dict(head.named_parameters())
    assert "queries" in head.state_dict()


def test_every_parameter_gets_a_gradient() -> None:
    head = build().train()
    head(torch.randn(4, 9, 12)).square().mean().backward()
    untouched = [n for n, p in head.named_parameters() if p.grad is None or not p.grad.any()]
    # A bias that shifts every key alike cancels in the softmax, by construction.
    assert untouched in ([], ["layer.attention.key.bias"])


def test_dropout_on_the_queries_differs_between_images() -> None:
    head = build().train()
    token = torch.randn(1, 9, 12).expand(2, -1, -1)
    logits = head(token)
    assert not torch.allclose(logits[0], logits[1])


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ValueError, match="do not divide"):
        MLDecoderConfig(num_classes=2, encoder_width=4, decoder_width=10, num_heads=3)


def test_full_decoding_has_one_query_a_class() -> None:
    config = MLDecoderConfig(num_classes=31, encoder_width=4)
    assert (config.num_queries, config.group_size) == (31, 1)
    assert math.prod(build(31, None).pool.weight.shape) == 31 * 16
