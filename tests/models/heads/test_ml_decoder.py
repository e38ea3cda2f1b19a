"""ML-Decoder's laws: group pooling, query path, feature layouts."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.config import MLDecoderConfig
from tests.models.heads import make_open, make_trained


@given(num_classes=st.integers(1, 20000), num_groups=st.integers(1, 1000))
def test_groups_cover_every_class_and_none_is_empty(num_classes: int, num_groups: int) -> None:
    config = MLDecoderConfig(num_classes=num_classes, encoder_width=1, num_groups=num_groups)
    slots = config.num_queries * config.group_size
    assert slots - config.group_size < num_classes <= slots
    assert config.num_queries <= min(num_groups, num_classes)
    # The configuration of a checkpoint of used groups, as it is read.
    again = config.model_copy(update={"num_groups": config.num_queries})
    assert (again.group_size, again.num_queries) == (config.group_size, config.num_queries)


def test_features_of_two_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match="dimensions, not 2"):
        make_trained()(torch.randn(2, 12))


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
