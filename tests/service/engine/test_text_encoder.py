"""Texts become embeddings, each the same in whatever company it is encoded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.bundle.reader import Bundle
from service.bundle.writer import write_bundle
from service.engine.text_encoder import MAX_TOKENS, TEXTS_PER_TURN, TextEncoder, open_text_encoder
from service.errors import BundleError
from tests.support.tiny_bundle import (
    EMBEDDING_WIDTH,
    open_draft,
    open_graphs,
    tiny_label_encoder,
    write_open_bundle,
)

# Padding to another length may sum in another order.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def encoder(open_bundle: Bundle) -> TextEncoder:
    encoder = open_text_encoder(open_bundle, 1)
    assert encoder is not None
    return encoder


@settings(max_examples=25)
@given(st.lists(st.text("abc \u00e9", min_size=1, max_size=40), min_size=1, max_size=8))
def test_text_has_the_same_embedding_in_any_company(encoder: TextEncoder, texts: list[str]) -> None:
    together = encoder.encode(texts)
    alone = np.concatenate([encoder.encode([text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=TOLERANCE, rtol=0)


def test_long_list_is_encoded_in_its_order(encoder: TextEncoder) -> None:
    texts = [f"label {i}" for i in range(2 * TEXTS_PER_TURN + 1)]
    found = encoder.encode(texts)
    assert found.shape == (len(texts), EMBEDDING_WIDTH)
    for i in (0, TEXTS_PER_TURN, len(texts) - 1):
        np.testing.assert_allclose(found[i], encoder.encode([texts[i]])[0], atol=TOLERANCE, rtol=0)


def test_no_texts_give_no_embeddings(encoder: TextEncoder) -> None:
    assert encoder.encode([]).shape == (0, EMBEDDING_WIDTH)


def test_long_text_is_cut(encoder: TextEncoder) -> None:
    start = "ab" * (MAX_TOKENS // 2)
    np.testing.assert_array_equal(encoder.encode([start + "c" * 999]), encoder.encode([start]))
    assert not np.allclose(encoder.encode([start]), encoder.encode([start[:-1]]))


def test_bundle_without_text_encoder_has_none(tiny_bundle: Bundle, tmp_path: Path) -> None:
    assert open_text_encoder(tiny_bundle, 1) is None
    assert open_text_encoder(write_open_bundle(tmp_path, encodes_text=False), 1) is None


def test_damaged_tokenizer_is_refused(tmp_path: Path) -> None:
    draft = open_draft()
    object.__setattr__(draft, "tokenizer", b'{"version": "1.0"}')
    bundle = write_bundle(tmp_path / draft.card.name, draft)
    with pytest.raises(BundleError, match="tokenizer"):
        open_text_encoder(bundle, 1)


def test_graph_that_takes_something_else_is_refused(tmp_path: Path) -> None:
    draft = open_draft()
    graphs = {**open_graphs(), "text_encoder": {"int8": tiny_label_encoder()}}
    object.__setattr__(draft, "graphs", graphs)
    bundle = write_bundle(tmp_path / draft.card.name, draft)
    with pytest.raises(BundleError, match="text_encoder"):
        open_text_encoder(bundle, 1)
