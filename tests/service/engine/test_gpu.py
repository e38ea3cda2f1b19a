"""The engine gives the same results on a GPU as on the CPU; run with `-m gpu`."""

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from export.graphs.optimise import halve
from service.bundle.card import Precision
from service.bundle.reader import Bundle
from service.bundle.writer import write_bundle
from service.engine.engine import open_engine
from tests.support.engines import (
    assert_gives_the_cpus_logits,
    assert_gives_the_cpus_memories,
    why_no_gpu,
)
from tests.support.tiny_bundle import blank_labels, mapped_graphs, open_card, open_draft

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def _gpu() -> None:
    """Skips the tests without a GPU; with one, a failing start fails them."""
    if reason := why_no_gpu():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A tiny bundle with both heads and their maps, the graphs for images in fp16 too."""
    graphs = {name: dict(variants) for name, variants in mapped_graphs().items()}
    for name in ("encoder", "trained_head", "open_head"):
        exact = onnx.load_from_string(graphs[name]["fp32"])  # type: ignore[index]
        graphs[name]["fp16"] = halve(exact).SerializeToString()  # type: ignore[index]
    draft = replace(open_draft(open_card("tiny-half")), graphs=graphs)
    return write_bundle(Path(tmp_path_factory.mktemp("gpu")) / "tiny-half", draft)


@pytest.mark.parametrize("options", [None, "cudnn_conv_algo_search=DEFAULT"])
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-3), ("fp16", 2e-2)])
def test_gpu_gives_the_cpus_results_for_any_mixture_of_heads(
    bundle: Bundle, precision: Precision, tolerance: float, options: str | None
) -> None:
    gpu = open_engine(
        bundle, device="cuda", precision=precision, max_batch_size=6, cuda_options=options
    )
    gpu.warm_up(blank_labels)
    for _ in range(2):
        assert_gives_the_cpus_logits(gpu, bundle, num_queries=9, tolerance=tolerance)
    assert_gives_the_cpus_memories(gpu, bundle, num_queries=9, tolerance=tolerance)
