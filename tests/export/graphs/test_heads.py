"""Every kind of head computes in ONNX Runtime what torch does."""

from pathlib import Path

import numpy as np
import pytest
import torch

from export import ExportError
from export.build import ExportRequest, build_bundle
from export.graphs.graph import open_session
from export.graphs.trace import trace_heads
from export.sources.open import OpenRequest
from models.checkpoints.checkpoint import write_checkpoint
from models.checkpoints.description import CheckpointError, Hints
from models.config import (
    GapConfig,
    HeadConfig,
    InputConfig,
    MLDecoderConfig,
    Query2LabelConfig,
    RamConfig,
    TimmHeadConfig,
    ZeroShotMLDecoderConfig,
)
from models.network import Network, build_head
from service.bundle.card import Precision
from tests.export.tiny_network import LABELS, assert_close, make_network, run_torch
from tests.support.tiny_bundle import run_bundle

WIDTHS = {"encoder_width": 256, "decoder_width": 16, "num_heads": 4, "feedforward_width": 24}
TRAINED: dict[str, HeadConfig] = {
    "gap": GapConfig(num_classes=5, encoder_width=256),
    "full": MLDecoderConfig(num_classes=5, **WIDTHS),
    "group": MLDecoderConfig(num_classes=5, num_groups=2, **WIDTHS),
    "query2label": Query2LabelConfig(num_classes=5, grid=(2, 3), **WIDTHS),
    "query2label-pre-norm": Query2LabelConfig(
        num_classes=5, grid=(2, 3), pre_norm=True, self_attention=(True, True), **WIDTHS
    ),
}
RAM_PLUS = RamConfig(num_classes=5, text_width=7, num_descriptions=3, **WIDTHS)
OPEN = ZeroShotMLDecoderConfig(
    embedding_width=7, embedding_encoder="letters", embedding_template="a photo of {}", **WIDTHS
)

PHOTOS = InputConfig(height=64, width=96)
PIXELS = np.random.default_rng(0).integers(0, 256, (3, 64, 96, 3), dtype=np.uint8)


def write(network: Network, path: Path) -> Path:
    write_checkpoint(path, network, tuple("abcde") if network.config.num_classes else (), {})
    return path


@pytest.mark.parametrize("config", TRAINED.values(), ids=TRAINED)
def test_graph_of_a_trained_head_equals_torch(config: HeadConfig) -> None:
    torch.manual_seed(0)
    head, tokens = build_head(config).eval(), torch.randn(3, 6, 256)
    session = open_session(trace_heads(head, 6, 256)["trained_head"])
    with torch.inference_mode():
        assert_close(session.run(["logits"], {"tokens": tokens.numpy()})[0], head(tokens).numpy())


def test_bundle_of_an_open_head_equals_torch(tmp_path: Path) -> None:
    network = make_network(input=PHOTOS, head=OPEN)
    path = write(network, tmp_path / "own.safetensors")
    bundle = build_bundle(ExportRequest(path, tmp_path / "model", precisions=frozenset({"fp16"})))
    assert bundle.card.trained_head is None
    assert bundle.labels == ()
    assert bundle.precisions() == ("fp32", "fp16")
    assert set(bundle.manifest.graphs["label_encoder"]) == {"fp32"}
    space = bundle.card.open_head.embedding_space
    assert (space.encoder, space.width, space.template) == ("letters", 7, "a photo of {}")
    assert bundle.card.open_head.threshold == 0.5
    embeddings = torch.randn(11, 7)
    logits = run_bundle(bundle, PIXELS, embeddings.numpy())
    assert_close(logits, run_torch(network, PIXELS, embeddings))


def test_bundle_of_ram_answers_its_own_and_other_labels_as_torch_does(tmp_path: Path) -> None:
    network = make_network(input=PHOTOS, head=RAM_PLUS)
    path = write(network, tmp_path / "own.safetensors")
    bundle = build_bundle(ExportRequest(path, tmp_path / "model", precisions=frozenset({"fp16"})))
    head = bundle.card.trained_head
    assert (head.kind, head.num_labels, head.threshold) == ("ram", 5, 0.68)
    assert_close(run_bundle(bundle, PIXELS), run_torch(network, PIXELS))
    space = bundle.card.open_head.embedding_space
    assert (space.encoder, space.width) == ("CLIP ViT-B/16", 21)
    embeddings = torch.randn(11, space.width) / 3
    embeddings[3, 7:] = 0  # two of three descriptions are missing
    logits = run_bundle(bundle, PIXELS, embeddings.numpy())
    assert_close(logits, run_torch(network, PIXELS, embeddings))
    assert_close(logits[:, 3:4], run_torch(network, PIXELS, embeddings[3:4, :7]))


@pytest.mark.parametrize(
    ("backbone", "head"),
    [
        ("test_vit3", {"parts": ("attn_pool", "head"), "encoder_width": 96}),
        ("test_convnext", {"parts": ("head",), "encoder_width": 64, "grid": (2, 3)}),
    ],
)
def test_bundle_of_timms_own_head_equals_torch(
    backbone: str, head: dict[str, object], folder: Path, tmp_path: Path
) -> None:
    head_config = TimmHeadConfig.model_validate({"num_classes": len(LABELS), **head})
    parts = {"backbone": backbone, "head": head_config, "prefix_tokens": "keep"}
    network = make_network(input=PHOTOS, **parts)
    write_checkpoint(tmp_path / "own.safetensors", network, LABELS, {})
    precisions: frozenset[Precision] = frozenset({"fp16", "int8"})
    request = ExportRequest(tmp_path / "own.safetensors", tmp_path / "model", folder, precisions)
    bundle = build_bundle(request)
    assert bundle.card.trained_head.kind == "timm"
    assert bundle.precisions() == ("fp32", "fp16", "int8")
    assert_close(run_bundle(bundle, PIXELS), run_torch(network, PIXELS))


def test_request_is_refused_when_it_does_not_fit_the_head(folder: Path, tmp_path: Path) -> None:
    trained = write(make_network(head=TRAINED["gap"]), tmp_path / "trained.safetensors")
    opened = write(make_network(head=OPEN), tmp_path / "open.safetensors")
    names = tmp_path / "names.txt"
    names.write_text("a\n")
    ram = write(make_network(head=RAM_PLUS), tmp_path / "ram.safetensors")
    out, encoder = tmp_path / "model", Hints(embedding_encoder="letters")
    another = OpenRequest(opened)
    for request, error, reason in (
        (ExportRequest(trained, out, hints=encoder), CheckpointError, "takes no embeddings"),
        (ExportRequest(opened, out, label_names=names), ExportError, "open labels"),
        (ExportRequest(opened, out, hints=Hints(single_label=True)), CheckpointError, "no softmax"),
        (ExportRequest(opened, out, label_thresholds=names), ExportError, "0 labels"),
        (ExportRequest(opened, out, photos=folder), ExportError, "trained labels"),
        (ExportRequest(ram, out, hints=Hints(single_label=True)), CheckpointError, "no softmax"),
        (ExportRequest(ram, out, opened=another), ExportError, "has an open head"),
    ):
        with pytest.raises(error, match=reason):
            build_bundle(request)
