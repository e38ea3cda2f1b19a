"""The screen: first order in the attended value, exact at its reference, the head's own logits."""

import pytest
import torch
from torch import Tensor

from models.heads.screen import NUM_NAMES, Screen, Stage
from models.heads.zero_shot import ZeroShotMLDecoder
from tests.models.heads import make_open

GRID = (4, 6)
TOKENS, WIDTH, LABELS, PROTOTYPES = 24, 16, 60, 40
ALL = (Stage(1e6, 1, 0), Stage(1e6, 1, 0))
SOME = (Stage(4.0, 1, 0), Stage(2.0, 1, 0))


@pytest.fixture(params=[0, PROTOTYPES], ids=["plain", "votes"])
def head(request: pytest.FixtureRequest) -> ZeroShotMLDecoder:
    return make_open(request.param).requires_grad_(False)


@pytest.fixture
def queries(head: ZeroShotMLDecoder) -> Tensor:
    return head.encode_labels(torch.randn(LABELS, 5))


def run(
    screen: Screen, tokens: Tensor, queries: Tensor, *, wanted: int = 1, shift: float = -1e3
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    ones = torch.ones(len(queries))
    count = torch.full((len(tokens),), wanted)
    return screen(tokens, queries, ones, shift * ones, count, **screen.describe(queries))


def test_readout_is_the_gradient_of_the_logit(head: ZeroShotMLDecoder, queries: Tensor) -> None:
    screen = Screen(head, GRID)
    screen.center(torch.randn(3, TOKENS, 12))
    value = screen.reference.expand(LABELS, -1).clone().requires_grad_()
    attended = head.layer.attention.out(value)
    logits = head.pool(head.layer._refine(queries[:, :WIDTH], attended)).squeeze(-1)
    (wanted,) = torch.autograd.grad(logits.sum(), value)
    readouts = screen.describe(queries)["readouts"]
    torch.testing.assert_close(readouts[:, :WIDTH], wanted, rtol=1e-4, atol=1e-5)
    at_reference = (readouts[:, :WIDTH] * screen.reference).sum(-1) + readouts[:, WIDTH]
    torch.testing.assert_close(at_reference, logits.detach(), rtol=1e-4, atol=1e-5)


def test_keys_have_the_largest_votes(head: ZeroShotMLDecoder, queries: Tensor) -> None:
    keys = Screen(head, GRID).describe(queries)
    assert torch.equal(keys["projected"], queries[:, WIDTH : 2 * WIDTH])
    if head.votes is None:
        assert keys.keys() == {"projected", "readouts"}
        return
    votes = queries[:, 2 * WIDTH :]
    assert keys["votes"].shape == (LABELS, NUM_NAMES)
    assert torch.equal(votes.gather(1, keys["names"]), keys["votes"])
    left = votes.scatter(1, keys["names"], 0.0)
    assert bool((left.amax(dim=1) <= keys["votes"].amin(dim=1)).all())


@pytest.mark.parametrize("grid", [GRID, (3, 8), (5, 5)])  # odd ones are pooled with what is left
def test_labels_that_are_kept_have_the_logits_of_the_head(
    head: ZeroShotMLDecoder, queries: Tensor, grid: tuple[int, int]
) -> None:
    tokens = torch.randn(3, grid[0] * grid[1], 12)
    screen = Screen(head, grid, *SOME)
    screen.center(tokens)
    logits, positions, needed, memory = run(screen, tokens, queries, wanted=5)
    assert needed.tolist() == [10, 10, 10]
    assert positions.shape == (3, 10)
    wanted = head.score(tokens, queries).gather(1, positions)
    torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(memory, head.remember(tokens))


def test_photo_with_the_reference_everywhere_has_its_best_labels_first(
    head: ZeroShotMLDecoder, queries: Tensor
) -> None:
    tokens = torch.randn(1, 1, 12).expand(1, TOKENS, -1)
    screen = Screen(head, GRID, *ALL)
    screen.center(tokens)
    logits, positions, needed, _ = run(screen, tokens, queries)
    assert sorted(positions[0].tolist()) == list(range(LABELS))
    assert needed.tolist() == [LABELS]
    if head.votes is None:  # the keys have some of the votes only
        assert bool((logits.diff() <= 1e-4).all())


def test_labels_above_the_threshold_are_all_kept(head: ZeroShotMLDecoder, queries: Tensor) -> None:
    tokens = torch.randn(1, 1, 12).expand(1, TOKENS, -1)
    screen = Screen(head, GRID, Stage(3.0, 1, 0), Stage(3.0, 1, 0))
    screen.center(tokens)
    full = head.score(tokens, queries)[0]
    floor = float(full.sort().values[-12])
    _, positions, needed, _ = run(screen, tokens, queries, shift=1e-3 - floor)
    assert set(full.topk(12).indices.tolist()) <= set(positions[0].tolist())
    assert int(needed) >= 3 * 8


def test_photo_keeps_the_same_labels_in_any_batch(head: ZeroShotMLDecoder, queries: Tensor) -> None:
    tokens = 3 * torch.randn(4, TOKENS, 12)
    screen = Screen(head, GRID, *SOME)
    screen.center(tokens)
    _, positions, needed, _ = run(screen, tokens, queries, wanted=2, shift=-0.5)
    for row in range(4):
        _, alone, count, _ = run(screen, tokens[row : row + 1], queries, wanted=2, shift=-0.5)
        assert count.tolist() == needed[row : row + 1].tolist()
        assert alone[0].tolist() == positions[row, : int(count)].tolist()
