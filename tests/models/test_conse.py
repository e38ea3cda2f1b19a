"""ConSE: a cosine with the mean of what a classifier sees, alone and inside the open head."""

import pytest
import torch
from torch.nn import functional

from models.config import ZeroShotMLDecoderConfig
from models.conse import ConSE, compare
from models.zero_shot import LabelEncoder, LabelScorer, ZeroShotMLDecoder

WIDTHS = {"encoder_width": 12, "embedding_width": 5, "decoder_width": 16, "num_heads": 4}


def make_head(num_prototypes: int) -> ZeroShotMLDecoder:
    torch.manual_seed(0)
    config = ZeroShotMLDecoderConfig(
        num_prototypes=num_prototypes, feedforward_width=24, dropout=0.0, **WIDTHS
    )
    head = ZeroShotMLDecoder(config).eval()
    if head.conse is not None:
        head.conse.names.copy_(functional.normalize(torch.randn(num_prototypes, 5), dim=1))
    return head


def test_a_sure_classifier_gives_the_cosine_of_its_name() -> None:
    names = functional.normalize(torch.randn(4, 5), dim=1)
    logits = torch.tensor([[0.0, 90.0, 0.0, 0.0], [90.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(compare(logits, names, names), names[[1, 0]] @ names.T)


def test_two_equal_names_give_their_middle() -> None:
    names = torch.eye(3)
    found = compare(torch.tensor([[50.0, 50.0, 0.0]]), names, names)
    torch.testing.assert_close(found, torch.tensor([[0.5**0.5, 0.5**0.5, 0.0]]))


def test_the_module_classifies_the_mean_of_the_tokens() -> None:
    torch.manual_seed(0)
    conse, tokens = ConSE(12, 7, 5), torch.randn(3, 9, 12)
    torch.testing.assert_close(conse.classify(tokens), conse.classifier(tokens.mean(dim=1)))
    assert conse(tokens, torch.randn(2, 5)).shape == (3, 2)


def test_centred_scores_lie_around_zero_and_rank_photos_as_before() -> None:
    torch.manual_seed(0)
    conse, tokens = ConSE(12, 7, 5), torch.randn(20, 9, 12)
    conse.names.copy_(functional.normalize(torch.randn(7, 5), dim=1))
    labels = functional.normalize(torch.randn(3, 5), dim=1)
    with torch.inference_mode():
        before = conse(tokens, labels)
        conse.center(tokens.split(8))
        after = conse(tokens, labels)
    torch.testing.assert_close(after.mean(dim=0), torch.zeros(3), rtol=0, atol=1e-6)
    torch.testing.assert_close(after - after[0], before - before[0])
    assert float(before.mean(dim=0).abs().max()) > 1e-3


def test_the_decoder_learns_alone() -> None:
    head = make_head(6)
    tokens, embeddings = torch.randn(3, 9, 12), torch.randn(4, 5)
    with torch.no_grad():
        trained_on = head.train()(tokens, embeddings)
        head.scale.fill_(0)
        torch.testing.assert_close(head.eval()(tokens, embeddings), trained_on)


def test_the_head_adds_the_scaled_cosine_to_the_decoders_logit() -> None:
    whole, plain = make_head(6), make_head(0)
    plain.load_state_dict(
        {k: v for k, v in whole.state_dict().items() if k != "scale" and "conse" not in k}
    )
    tokens, embeddings = torch.randn(3, 9, 12), torch.randn(4, 5)
    assert whole.conse is not None
    with torch.inference_mode():
        cosines = whole.conse(tokens, functional.normalize(embeddings, dim=1))
        expected = plain(tokens, embeddings) + whole.scale * cosines
        torch.testing.assert_close(whole(tokens, embeddings), expected)
    assert float(cosines.abs().max()) > 0.1


def test_encoded_once_and_scored_equals_the_whole() -> None:
    head = make_head(6)
    tokens, embeddings = torch.randn(3, 9, 12), torch.randn(7, 5)
    with torch.inference_mode():
        queries = LabelEncoder(head)(embeddings)
        assert queries.shape == (7, head.config.query_width) == (7, 2 * 16 + 5)
        split = LabelScorer(head)(tokens, queries)
        torch.testing.assert_close(split, head(tokens, embeddings), rtol=0, atol=0)


@pytest.mark.parametrize("training", [True, False])
def test_labels_do_not_bend_the_classifier_in_training(training: bool) -> None:
    head = make_head(6).train(training)
    head(torch.randn(2, 9, 12), torch.randn(4, 5)).sum().backward()
    assert head.conse is not None
    assert (head.conse.classifier.weight.grad is None) == training
