"""The authors' recorded logits, through checkpoint file, reader, bundle and ONNX Runtime.

A bundle takes whole pixels, so whole networks are compared with torch, and torch with the record in
`tests/models/heads/test_goldens.py`.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from export.build import ExportRequest, build_bundle
from export.graphs.graph import open_session
from export.graphs.trace import trace_heads
from export.sources.trained import read_source
from models.checkpoints.checkpoint import load_checkpoint
from models.checkpoints.description import Hints
from models.heads.attention import to_tokens
from tests.export.tiny_network import assert_close, run_torch
from tests.goldens import golden_names, read_golden
from tests.models.heads.test_goldens import hints, write_official
from tests.support.tiny_bundle import run_bundle

HEADS = [
    *golden_names("mld_"),
    *golden_names("zsl_"),
    *golden_names("q2l_"),
    *("ram_head_20_b2", "ram_plus_head_7x51_b2"),
]
WHOLE = [
    pytest.param("timm_resnet50_20_g7_224_b2"),
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in (
            "timm_resnet50_80_224_b2", "tresnet_m_224_model_b2", "tresnet_l_448_statedict_b1"
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
def test_head_in_onnx_runtime_gives_the_authors_logits(name: str, tmp_path: Path) -> None:
    golden = read_golden(name)
    head = load_checkpoint(write_official(golden, tmp_path / "official.pth"), **hints(golden))
    tokens = to_tokens(torch.from_numpy(golden.inputs[0])).contiguous().numpy()
    graphs = {k: open_session(v) for k, v in trace_heads(head, *tokens.shape[1:]).items()}
    if "trained_head" in graphs:
        logits = graphs["trained_head"].run(None, {"tokens": tokens})[0]
    else:
        queries = graphs["label_encoder"].run(None, {"embeddings": golden.inputs[1]})[0]
        logits = graphs["open_head"].run(None, {"tokens": tokens, "queries": queries})[0]
    assert np.abs(logits - golden.expected).max() <= golden.tolerance


@pytest.mark.parametrize("name", WHOLE)
def test_bundle_of_a_whole_network_equals_torch(name: str, tmp_path: Path) -> None:
    golden = read_golden(name)
    names = tmp_path / "names.txt"
    names.write_text("\n".join(f"label {i}" for i in range(golden.expected.shape[1])))
    path, given = write_official(golden, tmp_path / "official.pth"), Hints(**hints(golden))
    bundle = build_bundle(ExportRequest(path, tmp_path / "model", hints=given, label_names=names))
    network = read_source(path, given, names).network
    pixels = np.rint(golden.inputs[0].transpose(0, 2, 3, 1) * 255).astype(np.uint8)
    assert_close(run_bundle(bundle, pixels), run_torch(network, pixels))
