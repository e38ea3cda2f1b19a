"""ML-Decoder's laws: group pooling, query path, feature layouts."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from models.config import MLDecoderConfig
from models.heads.attention import to_tokens
from models.heads.ml_decoder import GroupLinear
from tests.models.heads import WIDTHS, make_open, make_trained


def pool_in_a_loop(pool: GroupLinear, decoded: Tensor) -> Tensor:
    """The paper's group pooling as the authors wrote it: group by group."""
    columns = [decoded[:, q, :] @ pool.weight[q] for q in range(len(pool.weight))]
    return torch.cat(columns, dim=1)[:, : pool.num_classes] + pool.bias


@given(num_classes=st.integers(1, 60), num_groups=st.integers(1, 70), batch=st.integers(1, 3))
def test_group_pooling_equals_its_loop(num_classes: int, num_groups: int, batch: int) -> None:
    config = MLDecoderConfig(num_classes=num_classes, num_groups=num_groups, **WIDTHS)
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


@torch.inference_mode()
def test_logits_depend_neither_on_layout_nor_order_nor_other_images() -> None:
    head, features = make_trained(), torch.randn(3, 12, 3, 5)
    tokens, expected = to_tokens(features), head(features)
    alone = torch.cat([head(row.unsqueeze(0)) for row in tokens])
    for found in (head(tokens), head(tokens[:, torch.randperm(15)]), alone):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_features_of_two_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match="dimensions, not 2"):
        make_trained()(torch.randn(2, 12))


@torch.inference_mode()
def test_labels_do_not_attend_to_each_other() -> None:
    head, tokens, others = make_trained(6, None), torch.randn(2, 9, 12), [0, 1, 3, 4, 5]
    before = head(tokens)
    head.queries[2] += torch.randn(16)  # a shift of all alike would vanish in the norm
    after = head(tokens)
    torch.testing.assert_close(after[:, others], before[:, others])
    assert not torch.allclose(after[:, 2], before[:, 2])


@pytest.mark.parametrize("opens", [False, True])
def test_every_parameter_gets_a_gradient(opens: bool) -> None:
    head = (make_open() if opens else make_trained()).train()
    embeddings = (torch.randn(7, 5),) if opens else ()
    head(torch.randn(4, 9, 12), *embeddings).square().mean().backward()
    parameters = dict(head.named_parameters())
    assert "queries" not in parameters  # they are fixed
    untouched = [n for n, p in parameters.items() if p.grad is None or not p.grad.any()]
    # A bias that shifts every key alike cancels in the softmax, by construction.
    assert untouched in ([], ["layer.attention.key.bias"])


def test_dropout_on_the_queries_differs_between_images() -> None:
    logits = make_trained().train()(torch.randn(1, 9, 12).expand(2, -1, -1))
    assert not torch.allclose(logits[0], logits[1])


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ValueError, match="do not divide"):
        MLDecoderConfig(num_classes=2, encoder_width=4, decoder_width=10, num_heads=3)
