"""Name votes: a classifier's names vote for labels, alone and inside the open head."""

import pytest
import torch
from torch.nn import functional

from models.config import ZeroShotMLDecoderConfig
from models.heads.name_votes import NameVotes
from models.heads.zero_shot import ZeroShotMLDecoder

WIDTHS = {"encoder_width": 12, "embedding_width": 5, "decoder_width": 16, "num_heads": 4}


def make_head(num_prototypes: int) -> ZeroShotMLDecoder:
    torch.manual_seed(0)
    config = ZeroShotMLDecoderConfig(
        num_prototypes=num_prototypes, feedforward_width=24, dropout=0.0, **WIDTHS
    )
    head = ZeroShotMLDecoder(config).eval()
    if head.votes is not None:
        head.votes.names.copy_(functional.normalize(torch.randn(num_prototypes, 5), dim=1))
    return head


def test_votes_classify_the_mean_of_the_tokens() -> None:
    torch.manual_seed(0)
    votes, tokens = NameVotes(12, 7, 5), torch.randn(3, 9, 12)
    torch.testing.assert_close(votes.classify(tokens), votes.classifier(tokens.mean(dim=1)))
    assert votes(tokens, votes.weigh(torch.randn(2, 5))).shape == (3, 2)


def test_label_has_the_mean_probability_of_the_nearest_names() -> None:
    torch.manual_seed(0)
    votes, tokens = NameVotes(12, 5, 5), torch.randn(3, 9, 12)
    votes.names.copy_(torch.eye(5))
    votes.sharpness.fill_(200)
    between = functional.normalize(torch.tensor([[1.0, 1.0, 0, 0, 0]]), dim=1)
    with torch.inference_mode():
        # Until it is centred, every name is as probable as any other.
        expected = votes.classify(tokens).softmax(dim=1)
        ratios = votes(tokens, votes.weigh(votes.names)).exp()
        torch.testing.assert_close(ratios / 5, expected)
        ratios = votes(tokens, votes.weigh(between)).exp()
        torch.testing.assert_close(ratios / 5, expected[:, :2].mean(dim=1, keepdim=True))


def test_centred_votes_are_one_in_the_mean_and_rank_photos_as_before() -> None:
    torch.manual_seed(0)
    votes, tokens = NameVotes(12, 7, 5), torch.randn(20, 9, 12)
    votes.names.copy_(functional.normalize(torch.randn(7, 5), dim=1))
    labels = functional.normalize(torch.randn(3, 5), dim=1)
    with torch.inference_mode():
        before = votes(tokens, votes.weigh(labels))
        votes.center(tokens.split(8))
        after = votes(tokens, votes.weigh(labels))
    torch.testing.assert_close(after.exp().mean(dim=0), torch.ones(3))
    torch.testing.assert_close(after - after[0], before - before[0])
    assert float((before.exp().mean(dim=0) - 1).abs().max()) > 1e-3


def test_score_is_finite_when_no_probable_name_is_near() -> None:
    votes, tokens = NameVotes(12, 5, 5), torch.randn(3, 9, 12)
    votes.names.copy_(torch.eye(5))
    votes.sharpness.fill_(1e4)
    with torch.no_grad():
        votes.classifier.weight.zero_()
        votes.classifier.bias.copy_(torch.tensor([1e4, 0, 0, 0, 0]))
        found = votes(tokens, votes.weigh(votes.names))
    assert found.isfinite().all()
    assert float(found.min()) > -14


def test_decoder_learns_without_votes() -> None:
    head = make_head(6)
    tokens, embeddings = torch.randn(3, 9, 12), torch.randn(4, 5)
    with torch.no_grad():
        trained_on = head.train()(tokens, embeddings)
        head.votes = None
        torch.testing.assert_close(head.eval()(tokens, embeddings), trained_on)


def test_head_adds_the_votes_to_the_decoders_logit() -> None:
    whole, plain = make_head(6), make_head(0)
    plain.load_state_dict({k: v for k, v in whole.state_dict().items() if "votes" not in k})
    tokens, embeddings = torch.randn(3, 9, 12), torch.randn(4, 5)
    assert whole.votes is not None
    with torch.inference_mode():
        votes = whole.votes(tokens, whole.votes.weigh(functional.normalize(embeddings, dim=1)))
        expected = plain(tokens, embeddings) + votes
        torch.testing.assert_close(whole(tokens, embeddings), expected)
    assert float(votes.abs().max()) > 0.1


@pytest.mark.parametrize("training", [True, False])
def test_labels_do_not_bend_the_classifier_in_training(training: bool) -> None:
    head = make_head(6).train(training)
    head(torch.randn(2, 9, 12), torch.randn(4, 5)).sum().backward()
    assert head.votes is not None
    assert (head.votes.classifier.weight.grad is None) == training
