"""The cosine head: SigLIP's formula, and maps that are patches' shares of it."""

import pytest
import torch
from torch import Tensor

from models.config import CosineConfig
from models.heads.cosine import CosineHead
from models.heads.maps import CosineMaps, make_maps

GRID = (2, 3)


@pytest.fixture
def head() -> CosineHead:
    config = CosineConfig(
        kind="siglip", embedding_width=5, embedding_encoder="tiny", embedding_template="{}"
    )
    head = CosineHead(config).eval()
    head.log_scale.data.fill_(2.0)
    head.bias.data.fill_(-3.0)
    return head


@pytest.fixture
def tokens() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(2, 7, 5)


def test_logit_is_the_scaled_cosine_with_the_first_token(head: CosineHead, tokens: Tensor) -> None:
    labels = torch.randn(4, 5)
    cosines = torch.cosine_similarity(tokens[:, :1], labels[None], dim=-1)
    expected = cosines * torch.e**2 - 3
    other = torch.cat([3 * tokens[:, :1], torch.randn(2, 6, 5)], dim=1)
    for found in (head(tokens, labels), head(other, 0.1 * labels)):
        torch.testing.assert_close(found, expected)


def test_map_peaks_at_the_patch_that_adds_most_to_the_label(head: CosineHead) -> None:
    tokens = torch.zeros(1, 7, 5)
    tokens[0, 0, :2] = 1.0
    tokens[0, 1 + 4, 0] = 1.0  # second row, second column
    tokens[0, 1 + 0, 1] = 1.0
    maps, count = make_maps(head, GRID)
    assert count == 7
    drawn = maps(head.remember(tokens), head.encode_labels(torch.eye(5)[:3]))[0]
    assert [divmod(int(each.argmax()), 3) for each in drawn[:2]] == [(1, 1), (0, 0)]
    assert drawn.amax(dim=(1, 2)).tolist() == [1.0, 1.0, 0.0]


def test_map_of_a_label_does_not_depend_on_the_others(head: CosineHead, tokens: Tensor) -> None:
    draw, queries = CosineMaps(GRID), head.encode_labels(torch.randn(4, 5))
    torch.testing.assert_close(draw(tokens, queries)[:, 2:3], draw(tokens, queries[2:3]))
