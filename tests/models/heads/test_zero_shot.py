"""Zero-shot ML-Decoder: the split for serving, independence of labels."""

import pytest
import torch

from models.config import InputConfig, NetworkConfig
from tests.models.heads import make_open


@pytest.mark.parametrize("num_prototypes", [0, 6])
@torch.inference_mode()
def test_encoding_then_scoring_any_labels_equals_the_whole_head(num_prototypes: int) -> None:
    head = make_open(num_prototypes)
    tokens, embeddings = torch.randn(3, 9, 12), torch.randn(7, 5)
    queries, whole = head.encode_labels(embeddings), head(tokens, embeddings)
    assert queries.shape == (7, head.config.query_width) == (7, 2 * 16 + num_prototypes)
    torch.testing.assert_close(head.score(tokens, queries), whole, rtol=0, atol=0)
    alone = torch.cat([head(tokens, row.unsqueeze(0)) for row in embeddings], dim=1)
    torch.testing.assert_close(alone, whole, rtol=1e-5, atol=1e-5)


def test_a_softmax_over_open_labels_is_refused() -> None:
    spec, head = InputConfig(height=64, width=64), make_open().config
    with pytest.raises(ValueError, match="no softmax"):
        NetworkConfig(backbone="test_resnet", input=spec, head=head, activation="softmax")
