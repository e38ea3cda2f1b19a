"""Maps in a bundle: those of torch, in every precision nearly the same, and small."""

import copy
from pathlib import Path

import numpy as np
import onnx
import pytest

from export.graphs.graph import Graphs, open_session
from export.graphs.optimise import halve
from export.graphs.trace import trace_heads
from export.graphs.verify import FP32_TOLERANCE, VerificationError, verify_head
from export.int8.quantise import Quantiser
from export.int8.search import signal_to_noise
from models.config import CosineConfig, GapConfig
from models.heads.baselines import Gap
from models.heads.cosine import CosineHead
from models.heads.ml_decoder import MLDecoder
from models.heads.zero_shot import ZeroShotMLDecoder
from service.bundle.manifest import MAP_GRAPHS
from tests.export.graphs.test_verify import with_weights
from tests.models.heads import make_open, make_trained

GRID = (2, 3)
TOKENS, WIDTH = 6, 12


def test_graphs_of_two_towers_equal_torch() -> None:
    config = CosineConfig(
        kind="clip", embedding_width=WIDTH, embedding_encoder="tiny", embedding_template="{}"
    )
    head = CosineHead(config)
    head.log_scale.data.fill_(3.0)
    graphs = trace_heads(head, 1 + TOKENS, WIDTH, GRID)
    for compared in (head, copy.deepcopy(head).double()):
        assert verify_head(compared, graphs, FP32_TOLERANCE).value <= FP32_TOLERANCE
    head.log_scale.data.fill_(3.1)
    with pytest.raises(VerificationError, match="logits of"):
        verify_head(head, graphs, FP32_TOLERANCE)


@pytest.mark.parametrize(
    "head",
    [make_trained(num_groups=None), make_trained(), make_open(), make_open(6)],
    ids=["full", "group", "open", "votes"],
)
def test_maps_of_any_labels_and_images_equal_torch(head: MLDecoder | ZeroShotMLDecoder) -> None:
    graphs = trace_heads(head, TOKENS, WIDTH, GRID)
    assert 0 < verify_head(head, graphs, FP32_TOLERANCE).value <= FP32_TOLERANCE
    in_float64 = copy.deepcopy(head).double()
    assert 0 < verify_head(in_float64, graphs, FP32_TOLERANCE).value <= FP32_TOLERANCE
    (name,) = graphs.keys() & MAP_GRAPHS
    with pytest.raises(VerificationError, match="maps of"):
        verify_head(head, {**graphs, name: with_weights(graphs[name], -1.0)}, FP32_TOLERANCE)


def test_heads_without_maps_are_exported() -> None:
    gap = Gap(GapConfig(num_classes=3, encoder_width=WIDTH)).eval()
    assert set(trace_heads(gap, TOKENS, WIDTH, GRID)) == {"trained_head"}
    graphs = trace_heads(make_trained(), TOKENS, WIDTH, None)
    assert set(graphs) == {"trained_head"}
    assert [port.name for port in graphs["trained_head"].graph.output] == ["logits"]


@pytest.fixture(scope="module")
def graphs() -> Graphs:
    return trace_heads(make_trained(num_groups=None), TOKENS, WIDTH, GRID)


@pytest.fixture(scope="module")
def tokens() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((32, TOKENS, WIDTH), dtype=np.float32)


def quantise(model: onnx.ModelProto, tokens: np.ndarray, folder: Path) -> onnx.ModelProto:
    return Quantiser(model, ({"tokens": photo[None]} for photo in tokens), folder).quantise()


def draw(graphs: Graphs, scorer: onnx.ModelProto, tokens: np.ndarray) -> np.ndarray:
    """Returns the maps of every trained label, made of the memory that `scorer` gives."""
    memory = open_session(scorer).run(["memory"], {"tokens": tokens})[0]
    feeds = {"memory": memory.astype(np.float32), "labels": np.arange(7)}
    return np.asarray(open_session(graphs["trained_head_maps"]).run(["maps"], feeds)[0])


def test_maps_of_small_number_formats_are_close(
    graphs: Graphs, tokens: np.ndarray, tmp_path: Path
) -> None:
    exact = graphs["trained_head"]
    expected = draw(graphs, exact, tokens)
    for variant, floor in ((quantise(exact, tokens, tmp_path), 12), (halve(exact), 35)):
        assert [port.name for port in variant.graph.output] == ["logits", "memory"]
        assert signal_to_noise(expected, draw(graphs, variant, tokens)) > floor


def test_memory_output_does_not_change_int8_logits(
    graphs: Graphs, tokens: np.ndarray, tmp_path: Path
) -> None:
    exact, plain = graphs["trained_head"], onnx.ModelProto()
    plain.CopyFrom(exact)
    del plain.graph.output[1:]
    logits, nodes = [], []
    for name, model in (("with", exact), ("without", plain)):
        (tmp_path / name).mkdir()
        int8 = quantise(model, tokens[:16], tmp_path / name)
        logits.append(open_session(int8).run(["logits"], {"tokens": tokens})[0])
        nodes.append([node.name for node in int8.graph.node])
    np.testing.assert_array_equal(*logits)
    assert nodes[0] == nodes[1]
