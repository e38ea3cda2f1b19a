"""Embeddings become queries, each on its own, in runs of bounded size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from service.bundle.reader import Bundle
from service.bundle.writer import write_bundle
from service.engine import label_encoder as queries
from service.engine.label_encoder import LabelEncoder, open_label_encoder
from service.errors import BundleError
from tests.support.tiny_bundle import (
    EMBEDDING_WIDTH,
    QUERY_WIDTH,
    open_draft,
    open_graphs,
    serialize_graph,
    tiny_head,
    tiny_label_encoder,
)

# Runs over other numbers of labels may sum in another order.
TOLERANCE = 1e-6


def odd_encoder(operation: str, other: str, **attributes: int) -> bytes:
    """Returns a label encoder that does something to the embeddings and another tensor."""
    nodes = [helper.make_node(operation, ["embeddings", other], ["queries"], **attributes)]
    size = ["L", EMBEDDING_WIDTH]
    embeddings = helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, size)
    queries = helper.make_tensor_value_info("queries", TensorProto.FLOAT, ["Q", "K"])
    uneven = np.array([-1, 2 * EMBEDDING_WIDTH + 1], np.int64)
    return serialize_graph(nodes, embeddings, queries, {"shape": uneven})


@pytest.fixture(scope="module")
def encoder(open_bundle: Bundle) -> LabelEncoder:
    encoder = open_label_encoder(open_bundle, 1)
    assert encoder is not None
    return encoder


@pytest.mark.parametrize("per_run", [1, 3, 10, 11])
def test_chunks_give_the_queries_of_the_whole(
    encoder: LabelEncoder, monkeypatch: pytest.MonkeyPatch, per_run: int
) -> None:
    embeddings = np.random.default_rng(0).normal(size=(10, EMBEDDING_WIDTH)).astype(np.float32)
    whole = encoder.encode(embeddings)
    assert whole.shape == (10, encoder.width) == (10, QUERY_WIDTH)
    monkeypatch.setattr(queries, "LABELS_PER_RUN", per_run)
    np.testing.assert_allclose(encoder.encode(embeddings), whole, atol=TOLERANCE, rtol=0)


def test_no_embeddings_give_no_queries(encoder: LabelEncoder) -> None:
    found = encoder.encode(np.zeros((0, EMBEDDING_WIDTH), np.float32))
    assert found.shape == (0, QUERY_WIDTH)


def test_bundle_without_open_head_has_no_label_encoder(tiny_bundle: Bundle) -> None:
    assert open_label_encoder(tiny_bundle, 1) is None


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (tiny_head(), "label_encoder"),
        (tiny_label_encoder(width=EMBEDDING_WIDTH + 1), "embeddings"),
        # Two embeddings are tried.
        (odd_encoder("Concat", "embeddings", axis=0), "gave queries of shape \\[4, 6]"),
        (odd_encoder("Reshape", "shape"), "does not run"),
    ],
)
def test_graph_that_takes_something_else_is_refused(
    tmp_path: Path, graph: bytes, reason: str
) -> None:
    draft = open_draft()
    object.__setattr__(draft, "graphs", {**open_graphs(), "label_encoder": {"fp32": graph}})
    bundle = write_bundle(tmp_path / draft.card.name, draft)
    with pytest.raises(BundleError, match=reason):
        open_label_encoder(bundle, 1)
