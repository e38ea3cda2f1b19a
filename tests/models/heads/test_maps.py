"""Maps' laws: contributions by the attention's own numbers, one label's map is its own."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.config import CosineConfig
from models.heads.attention import Attention
from models.heads.cosine import CosineHead
from models.heads.maps import Contributions, OpenMaps, TrainedMaps, find_grid, make_maps
from tests.models import shake
from tests.models.heads import make_open, make_trained

GRID = (2, 3)
TOLERANCE = 1e-5
"""Products of other sizes may sum in another order."""


def contribute_in_a_loop(
    attention: Attention, memory: Tensor, queries: Tensor, readout: Tensor
) -> Tensor:
    """Head by head, from the keys and values that the attention itself computes."""
    width, count = attention.head_width, memory.shape[1]
    keys, values = attention.key(memory), attention.value(memory) - attention.value.bias
    total = torch.zeros(len(memory), len(queries), count)
    for head in range(attention.num_heads):
        part = slice(head * width, (head + 1) * width)
        scores = queries[:, part] @ keys[:, :, part].transpose(1, 2)
        worth = readout[:, part] @ values[:, :, part].transpose(1, 2)
        total += scores.softmax(dim=-1) * worth
    return total


@given(seed=st.integers(0, 1000), batch=st.integers(1, 3), labels=st.integers(1, 5))
@settings(max_examples=30)
def test_contributions_equal_the_attentions_own(seed: int, batch: int, labels: int) -> None:
    torch.manual_seed(seed)
    attention = shake(Attention(16, 4, 0.0)).eval()
    memory, queries, readout = (torch.randn(*s, 16) for s in ((batch, 6), (labels,), (labels,)))
    contributions = Contributions(attention)(memory, queries, readout)
    expected = contribute_in_a_loop(attention, memory, queries, readout)
    torch.testing.assert_close(contributions, expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("num_groups", [None, 3, 1])
def test_trained_label_attends_with_the_query_of_its_group(num_groups: int | None) -> None:
    head = make_trained(num_groups=num_groups)
    maps, attention = TrainedMaps(head, GRID), head.layer.attention
    gains = head.layer.norm2.weight * head.layer.norm3.weight
    for label in range(7):
        query, column = divmod(label, head.config.group_size)
        weight = head.pool.weight[query, :, column]
        torch.testing.assert_close(maps.readout[label], (weight * gains) @ attention.out.weight)
        projected = attention.project(head.layer.prepare(head.queries[query]))
        torch.testing.assert_close(maps.queries[query], projected)


@given(seed=st.integers(0, 1000), labels=st.lists(st.integers(0, 6), min_size=1, max_size=9))
@settings(max_examples=30)
def test_map_depends_neither_on_other_labels_nor_on_other_images(
    seed: int, labels: list[int]
) -> None:
    torch.manual_seed(seed)
    trained, opened = make_trained(), make_open()
    tokens, queries = torch.randn(3, 6, 12), opened.encode_labels(torch.randn(7, 5))
    draw_trained, draw_open = TrainedMaps(trained, GRID), OpenMaps(opened, GRID)
    memory, other = trained.remember(tokens), opened.remember(tokens)
    together = draw_trained(memory, torch.tensor(labels))
    together_open = draw_open(other, queries[labels])
    assert together.shape == together_open.shape == (3, len(labels), *GRID)
    for i, label in enumerate(labels):
        for row in range(3):
            alone = draw_trained(memory[row : row + 1], torch.tensor([label]))[0, 0]
            torch.testing.assert_close(together[row, i], alone, atol=TOLERANCE, rtol=0)
            alone = draw_open(other[row : row + 1], queries[label : label + 1])[0, 0]
            torch.testing.assert_close(together_open[row, i], alone, atol=TOLERANCE, rtol=0)


def test_token_that_makes_the_label_is_the_peak() -> None:
    head = make_open(num_prototypes=4)
    label = head.encode_labels(torch.randn(1, 5))
    tokens = 0.1 * torch.randn(1, 6, 12)
    for position in range(6):
        with torch.no_grad():
            tried = tokens.repeat(40, 1, 1)
            tried[:, position] += 3 * torch.randn(40, 12)
            logits = head.recall(tried, head.remember(tried), label)[:, 0]
        marked = tried[logits.argmax()][None]
        drawn = OpenMaps(head, GRID)(head.remember(marked), label)[0, 0]
        assert int(drawn.argmax()) == position


def test_cosine_map_peaks_at_the_patch_that_adds_most_to_the_label() -> None:
    space = {"embedding_width": 5, "embedding_encoder": "tiny", "embedding_template": "{}"}
    head = CosineHead(CosineConfig(kind="siglip", **space)).eval()
    tokens = torch.zeros(1, 7, 5)
    tokens[0, 0, :2] = 1.0
    tokens[0, 1 + 4, 0] = 1.0  # second row, second column
    tokens[0, 1 + 0, 1] = 1.0
    maps, count = make_maps(head, GRID)
    assert count == 7
    drawn = maps(head.remember(tokens), head.encode_labels(torch.eye(5)[:3]))[0]
    assert [divmod(int(label_map.argmax()), 3) for label_map in drawn[:2]] == [(1, 1), (0, 0)]
    assert drawn.amax(dim=(1, 2)).tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("tokens", "height", "width", "grid"),
    [
        (64, 240, 240, (8, 8)),
        (49, 224, 224, (7, 7)),
        (6, 64, 96, (2, 3)),
        (2, 32, 48, (1, 2)),
        (196, 448, 448, (14, 14)),
        (50, 224, 224, None),
        (1, 7, 300, (1, 1)),
    ],
)
def test_grid_is_that_of_square_patches(
    tokens: int, height: int, width: int, grid: tuple[int, int] | None
) -> None:
    assert find_grid(tokens, height, width) == grid
