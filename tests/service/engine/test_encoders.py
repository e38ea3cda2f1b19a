"""Texts become embeddings and embeddings queries, each independent of the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tokenizers import Tokenizer

from service.bundle.reader import Bundle
from service.engine import encoders
from service.engine.encoders import (
    MAX_TOKENS,
    LabelEncoder,
    TextEncoder,
    open_label_encoder,
    open_text_encoder,
)
from service.errors import BundleError, InvalidLabelSet
from tests.support.tiny_bundle import (
    EMBEDDING_WIDTH,
    QUERY_WIDTH,
    serialize_graph,
    tiny_head,
    tiny_label_encoder,
    tiny_tokenizer,
    write_changed_bundle,
    write_open_bundle,
    write_screened_bundle,
)

# Runs over other numbers of labels may sum in another order.
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def encoder(open_bundle: Bundle) -> TextEncoder:
    encoder = open_text_encoder(open_bundle, 1)
    assert encoder is not None
    return encoder


@settings(max_examples=25)
@given(st.lists(st.text("abc \u00e9", min_size=1, max_size=40), min_size=1, max_size=8))
def test_embedding_does_not_depend_on_other_texts_in_the_batch(
    encoder: TextEncoder, texts: list[str]
) -> None:
    together = encoder.encode(texts)
    alone = np.concatenate([encoder.encode([text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=TOLERANCE, rtol=0)


def test_list_is_encoded_in_its_order(encoder: TextEncoder) -> None:
    texts = [f"label {i}" for i in range(9)]
    found = encoder.encode(texts)
    assert found.shape == (len(texts), EMBEDDING_WIDTH)
    for i in (0, 4, 8):
        np.testing.assert_allclose(found[i], encoder.encode([texts[i]])[0], atol=TOLERANCE, rtol=0)


def test_no_texts_give_no_embeddings(encoder: TextEncoder) -> None:
    assert encoder.encode([]).shape == (0, EMBEDDING_WIDTH)


def test_long_text_is_cut_and_refused_by_the_check(encoder: TextEncoder) -> None:
    start = "ab" * (MAX_TOKENS // 2)
    encoder.check([start])
    with pytest.raises(
        InvalidLabelSet, match=rf"reads {MAX_TOKENS} tokens .* has {MAX_TOKENS + 9}"
    ):
        encoder.check(["a", start + "c" * 9])
    np.testing.assert_array_equal(encoder.encode([start + "c" * 999]), encoder.encode([start]))
    assert not np.allclose(encoder.encode([start]), encoder.encode([start[:-1]]))


def test_bundle_without_text_encoder_has_none(tiny_bundle: Bundle, tmp_path: Path) -> None:
    assert open_text_encoder(tiny_bundle, 1) is None
    assert open_text_encoder(write_open_bundle(tmp_path, encodes_text=False), 1) is None


@pytest.mark.parametrize(
    ("file", "content"),
    [("tokenizer", b'{"version": "1.0"}'), ("text_encoder", tiny_label_encoder())],
)
def test_text_encoder_with_a_damaged_tokenizer_or_other_tensors_is_refused(
    tmp_path: Path, file: str, content: bytes
) -> None:
    bundle = write_changed_bundle(tmp_path, **{file: content})
    with pytest.raises(BundleError, match=file):
        open_text_encoder(bundle, 1)


def test_text_encoder_reads_no_more_than_its_tokenizer_says(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_str(tiny_tokenizer().decode())
    tokenizer.enable_truncation(7)
    encoder = open_text_encoder(write_changed_bundle(tmp_path, tokenizer.to_str().encode()), 1)
    assert encoder is not None
    with pytest.raises(InvalidLabelSet, match=r"reads 7 tokens .* has 8"):
        encoder.check(["12345678"])


@pytest.fixture(scope="module")
def labels(open_bundle: Bundle) -> LabelEncoder:
    encoder = open_label_encoder(open_bundle, 1)
    assert encoder is not None
    return encoder


@pytest.mark.parametrize("per_run", [1, 3, 10, 11])
def test_chunks_of_embeddings_give_the_queries_of_the_whole(
    labels: LabelEncoder, monkeypatch: pytest.MonkeyPatch, per_run: int
) -> None:
    embeddings = np.random.default_rng(0).normal(size=(10, EMBEDDING_WIDTH)).astype(np.float32)
    whole = labels.encode(embeddings).queries
    assert whole.shape == labels.make_blank(10).queries.shape == (10, QUERY_WIDTH)
    monkeypatch.setattr(encoders, "LABELS_PER_RUN", per_run)
    np.testing.assert_allclose(labels.encode(embeddings).queries, whole, atol=TOLERANCE, rtol=0)


def test_no_embeddings_give_no_queries(labels: LabelEncoder) -> None:
    found = labels.encode(np.zeros((0, EMBEDDING_WIDTH), np.float32))
    assert found.keys is None
    assert found.queries.shape == (0, QUERY_WIDTH)


def test_keys_are_those_of_the_queries_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoders, "LABELS_PER_RUN", 3)
    bundle = write_screened_bundle(tmp_path)
    embeddings = np.random.default_rng(0).normal(size=(10, EMBEDDING_WIDTH)).astype(np.float32)
    encoder = open_label_encoder(bundle, 1)
    assert encoder is not None
    found = encoder.encode(embeddings)
    assert found.keys is not None
    np.testing.assert_array_equal(found.keys["projected"], found.queries)
    assert encoder.encode(embeddings, with_keys=False).keys is None


def test_labels_have_no_keys_if_the_screen_is_off(tmp_path: Path) -> None:
    encoder = open_label_encoder(write_screened_bundle(tmp_path), 1, screen=False)
    assert encoder is not None
    assert encoder.encode(np.ones((2, EMBEDDING_WIDTH), np.float32)).keys is None


def test_bundle_without_open_head_has_no_label_encoder(tiny_bundle: Bundle) -> None:
    assert open_label_encoder(tiny_bundle, 1) is None


def odd_encoder(operation: str, other: str, **attributes: int) -> bytes:
    """Returns a label encoder that does something to the embeddings and another tensor."""
    nodes = [helper.make_node(operation, ["embeddings", other], ["queries"], **attributes)]
    size = ["L", EMBEDDING_WIDTH]
    embeddings = helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, size)
    queries = helper.make_tensor_value_info("queries", TensorProto.FLOAT, ["Q", "K"])
    uneven = np.array([-1, 2 * EMBEDDING_WIDTH + 1], np.int64)
    return serialize_graph(nodes, embeddings, queries, {"shape": uneven})


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (tiny_head(), "label_encoder"),
        (tiny_label_encoder(width=EMBEDDING_WIDTH + 1), "embeddings"),
        # The start encodes two embeddings.
        (odd_encoder("Concat", "embeddings", axis=0), "gave queries of shape \\[4, 6]"),
        (odd_encoder("Reshape", "shape"), "does not run"),
    ],
)
def test_label_encoder_with_other_tensors_is_refused(
    tmp_path: Path, graph: bytes, reason: str
) -> None:
    bundle = write_changed_bundle(tmp_path, label_encoder=graph)
    with pytest.raises(BundleError, match=reason):
        open_label_encoder(bundle, 1)
