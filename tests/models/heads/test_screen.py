"""The screen: first order in the attended value, exact at its reference, the same per label."""

import pytest
import torch
from torch import Tensor

from models.config import ZeroShotMLDecoderConfig
from models.heads.screen import Screen
from models.heads.zero_shot import ZeroShotMLDecoder

GRID = (4, 6)
TOKENS, WIDTH, LABELS = 24, 16, 7


@pytest.fixture
def head() -> ZeroShotMLDecoder:
    torch.manual_seed(0)
    widths = {"encoder_width": 12, "embedding_width": 5, "decoder_width": WIDTH, "num_heads": 4}
    config = ZeroShotMLDecoderConfig.model_validate({"feedforward_width": 24, **widths})
    head = ZeroShotMLDecoder(config).eval().requires_grad_(False)
    for norm in (head.layer.norm2, head.layer.norm3):
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.normal_()
    return head


@pytest.fixture
def queries(head: ZeroShotMLDecoder) -> Tensor:
    return head.encode_labels(torch.randn(LABELS, 5))


def estimate(screen: Screen, tokens: Tensor, queries: Tensor) -> Tensor:
    return screen.estimate(screen.look(tokens), queries, screen.describe(queries))


def test_readout_is_the_gradient_of_the_logit(head: ZeroShotMLDecoder, queries: Tensor) -> None:
    screen = Screen(head, GRID)
    screen.center(torch.randn(3, TOKENS, 12))
    value = screen.reference.expand(LABELS, -1).clone().requires_grad_()
    attended = head.layer.attention.out(value)
    logits = head.pool(head.layer._refine(queries[:, :WIDTH], attended)).squeeze(-1)
    (wanted,) = torch.autograd.grad(logits.sum(), value)
    found = screen.describe(queries)
    torch.testing.assert_close(found[:, :WIDTH], wanted, rtol=1e-4, atol=1e-5)
    at_reference = (found[:, :WIDTH] * screen.reference).sum(-1) + found[:, WIDTH]
    torch.testing.assert_close(at_reference, logits.detach(), rtol=1e-4, atol=1e-5)


def test_estimate_is_exact_for_a_photo_with_the_reference_everywhere(
    head: ZeroShotMLDecoder, queries: Tensor
) -> None:
    tokens = torch.randn(1, 1, 12).expand(1, TOKENS, -1)
    screen = Screen(head, GRID)
    screen.center(tokens)
    wanted = head.score(tokens, queries)
    torch.testing.assert_close(estimate(screen, tokens, queries), wanted, rtol=1e-4, atol=1e-4)


def test_estimates_approach_the_logits_near_the_reference(
    head: ZeroShotMLDecoder, queries: Tensor
) -> None:
    head.double()  # the errors are small
    queries = queries.double()
    middle, change = torch.randn(1, 1, 12).double(), torch.randn(2, TOKENS, 12).double()
    screen = Screen(head, GRID, stride=1).double()
    screen.center(middle.expand(1, TOKENS, -1))
    errors = []
    for size in (0.1, 0.01):
        tokens = middle + size * change
        error = estimate(screen, tokens, queries) - head.score(tokens, queries)
        errors.append(float(error.abs().max()))
    assert errors[1] < errors[0] / 20  # of second order: 100 times smaller


def test_estimate_depends_on_neither_other_labels_nor_other_photos(
    head: ZeroShotMLDecoder, queries: Tensor
) -> None:
    tokens = torch.randn(3, TOKENS, 12)
    screen = Screen(head, GRID)
    screen.center(tokens)
    whole = estimate(screen, tokens, queries)
    alone = estimate(screen, tokens[1:2], queries[4:5])
    torch.testing.assert_close(whole[1:2, 4:5], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("grid", "pooled"), [((4, 6), 6), ((3, 8), 8), ((5, 5), 9)])
def test_odd_grids_are_pooled_with_what_is_left(
    head: ZeroShotMLDecoder, grid: tuple[int, int], pooled: int
) -> None:
    tokens = torch.randn(2, grid[0] * grid[1], 12)
    places, values = Screen(head, grid).look(tokens)
    assert places.shape == values.shape == (2, pooled, WIDTH)
