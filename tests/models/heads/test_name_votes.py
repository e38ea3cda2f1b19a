"""Name votes: a classifier's names vote for labels, alone and inside the open head."""

import pytest
import torch
from torch.nn import functional

from models.heads.name_votes import NameVotes
from tests.models.heads import make_open


@pytest.fixture
def votes() -> NameVotes:
    torch.manual_seed(0)
    votes = NameVotes(12, 5, 5)
    votes.names.copy_(torch.eye(5))
    return votes


@torch.inference_mode()
def test_label_has_the_mean_probability_of_the_nearest_names(votes: NameVotes) -> None:
    tokens = torch.randn(3, 9, 12)
    votes.sharpness.fill_(200)
    between = functional.normalize(torch.tensor([[1.0, 1.0, 0, 0, 0]]), dim=1)
    # Until it is centred, every name is as probable as any other.
    expected = votes.classifier(tokens.mean(dim=1)).softmax(dim=1)
    ratios = votes(tokens, votes.weigh(votes.names)).exp()
    torch.testing.assert_close(ratios / 5, expected)
    ratios = votes(tokens, votes.weigh(between)).exp()
    torch.testing.assert_close(ratios / 5, expected[:, :2].mean(dim=1, keepdim=True))


@torch.inference_mode()
def test_centred_votes_are_one_in_the_mean_and_rank_photos_as_before(votes: NameVotes) -> None:
    tokens = torch.randn(20, 9, 12)
    labels = functional.normalize(torch.randn(3, 5), dim=1)
    before = votes(tokens, votes.weigh(labels))
    votes.center(tokens.split(8))
    after = votes(tokens, votes.weigh(labels))
    torch.testing.assert_close(after.exp().mean(dim=0), torch.ones(3))
    torch.testing.assert_close(after - after[0], before - before[0])
    assert float((before.exp().mean(dim=0) - 1).abs().max()) > 1e-3


@torch.no_grad()
def test_score_is_finite_when_no_probable_name_is_near(votes: NameVotes) -> None:
    votes.sharpness.fill_(1e4)
    votes.classifier.weight.zero_()
    votes.classifier.bias.copy_(torch.tensor([1e4, 0, 0, 0, 0]))
    scores = votes(torch.randn(3, 9, 12), votes.weigh(votes.names))
    assert scores.isfinite().all()
    assert float(scores.min()) > -14


@torch.no_grad()
def test_head_adds_the_votes_to_the_decoders_logit_outside_training() -> None:
    head = make_open(6)
    for module in head.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    tokens, embeddings = torch.randn(3, 9, 12), torch.randn(4, 5)
    votes = head.votes(tokens, head.votes.weigh(functional.normalize(embeddings, dim=1)))
    assert float(votes.abs().max()) > 0.1
    logits, trained_on = head(tokens, embeddings), head.train()(tokens, embeddings)
    head.votes = None
    plain = head.eval()(tokens, embeddings)
    torch.testing.assert_close(logits, plain + votes)
    torch.testing.assert_close(trained_on, plain)
