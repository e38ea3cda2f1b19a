"""Zero-shot ML-Decoder: the split for serving, independence of labels, augmentation."""

import pytest
import torch

from models.config import InputConfig, NetworkConfig, ZeroShotMLDecoderConfig
from models.heads.zero_shot import ZeroShotMLDecoder
from models.train.queries import QueryAugmentation


def make_head(num_prototypes: int = 0) -> ZeroShotMLDecoder:
    torch.manual_seed(0)
    widths = {"encoder_width": 12, "embedding_width": 5, "decoder_width": 16, "num_heads": 4}
    fields = {"feedforward_width": 24, "num_prototypes": num_prototypes, **widths}
    return ZeroShotMLDecoder(ZeroShotMLDecoderConfig.model_validate(fields)).eval()


@pytest.fixture
def head() -> ZeroShotMLDecoder:
    return make_head()


@pytest.mark.parametrize("num_prototypes", [0, 6])
def test_encoding_then_scoring_equals_the_whole_head(num_prototypes: int) -> None:
    head = make_head(num_prototypes)
    if head.votes is not None:
        head.votes.names.copy_(torch.nn.functional.normalize(torch.randn(6, 5), dim=1))
    tokens, embeddings = torch.randn(3, 9, 12), torch.randn(7, 5)
    with torch.inference_mode():
        queries, whole = head.encode_labels(embeddings), head(tokens, embeddings)
        split = head.score(tokens, queries)
    assert queries.shape == (7, head.config.query_width) == (7, 2 * 16 + num_prototypes)
    assert whole.shape == (3, 7)
    torch.testing.assert_close(split, whole, rtol=0, atol=0)


def test_score_does_not_depend_on_other_labels(head: ZeroShotMLDecoder) -> None:
    tokens, embeddings = torch.randn(3, 9, 12), torch.randn(7, 5)
    with torch.inference_mode():
        whole = head(tokens, embeddings)
        alone = torch.cat([head(tokens, row.unsqueeze(0)) for row in embeddings], dim=1)
    torch.testing.assert_close(whole, alone, rtol=1e-5, atol=1e-5)


def test_every_parameter_gets_a_gradient(head: ZeroShotMLDecoder) -> None:
    head.train()(torch.randn(4, 9, 12), torch.randn(7, 5)).square().mean().backward()
    untouched = [n for n, p in head.named_parameters() if p.grad is None or not p.grad.any()]
    # A bias that shifts every key alike cancels in the softmax, by construction.
    assert untouched in ([], ["layer.attention.key.bias"])


def test_augmentation_adds_absent_queries_and_moves_the_others() -> None:
    torch.manual_seed(0)
    embeddings, targets = torch.randn(6, 5) + 3, torch.randint(0, 2, (4, 6)).float()
    queries, wanted = QueryAugmentation(num_random=8, noise=0.1).augment(embeddings, targets)
    assert (queries.shape, wanted.shape) == ((14, 5), (4, 14))
    torch.testing.assert_close(wanted[:, :6], targets)
    assert not wanted[:, 6:].any()
    moved = (queries[:6] - embeddings).abs()
    assert 0 < moved.mean() < 0.3
    assert (queries[6:].mean(dim=0) - 3).abs().max() < 2


def test_augmentation_changes_nothing_by_default() -> None:
    embeddings, targets = torch.randn(6, 5), torch.ones(4, 6)
    queries, wanted = QueryAugmentation().augment(embeddings, targets)
    torch.testing.assert_close(queries, embeddings)
    torch.testing.assert_close(wanted, targets)


def test_a_softmax_over_open_labels_is_refused(head: ZeroShotMLDecoder) -> None:
    with pytest.raises(ValueError, match="no softmax"):
        NetworkConfig(
            backbone="test_resnet",
            input=InputConfig(height=64, width=64),
            head=head.config,
            activation="softmax",
        )
