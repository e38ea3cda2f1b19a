"""RAM and RAM++ beyond the recorded logits of `test_goldens.py`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from models.checkpoints.checkpoint import load_checkpoint
from models.checkpoints.description import CheckpointError
from models.config import RamConfig
from models.heads.ram import Ram
from tests.goldens import read_golden

WIDTHS: dict[str, Any] = {
    "num_classes": 3, "encoder_width": 6, "text_width": 8, "decoder_width": 16,
    "feedforward_width": 24,
}  # fmt: skip


RAM, RAM_PLUS = "ram_head_20_b2", "ram_plus_head_7x51_b2"


def make_head(**changes: Any) -> Ram:
    torch.manual_seed(0)
    return Ram(RamConfig(**WIDTHS, **changes)).eval()


def read_case(name: str) -> tuple[dict[str, Tensor], Tensor]:
    """Returns the tensors of a recorded file, and its images."""
    golden = read_golden(name)
    state = {key: torch.from_numpy(value) for key, value in golden.state.items()}
    return state, torch.from_numpy(golden.inputs[0])


def run_file(path: Path, state: dict[str, Tensor], *inputs: Tensor) -> Tensor:
    torch.save({"model": state, "optimizer": {}, "config": {}, "epoch": 0}, path)
    with torch.inference_mode():
        logits: Tensor = load_checkpoint(path)(*inputs)
    return logits


def test_older_names_and_leftovers_of_training_give_the_same_logits(tmp_path: Path) -> None:
    state, images = read_case(RAM)
    older = {key.replace("tagging_head.", "vision_multi."): t for key, t in state.items()}
    older |= {"tag_encoder.embeddings.position_ids": torch.arange(4), "text_decoder.x": images}
    logits = run_file(tmp_path / "older.pth", older, images)
    torch.testing.assert_close(
        logits, run_file(tmp_path / "new.pth", state, images), rtol=0, atol=0
    )


def test_other_labels_replace_the_files_own(tmp_path: Path) -> None:
    state, images = read_case(RAM_PLUS)
    chosen = state["label_embed"].unflatten(0, (-1, 51))[[4, 1]]
    own_logits = run_file(tmp_path / "own.pth", state, images)
    for embeddings in (chosen, chosen.flatten(1)):
        logits = run_file(tmp_path / "other.pth", state, images, embeddings)
        torch.testing.assert_close(logits, own_logits[:, [4, 1]])


@pytest.mark.parametrize(
    ("golden", "change", "reason"),
    [
        (RAM, {"fc.weight": None}, "Missing.*pool.weight"),
        (RAM, {"wordvec_proj.bias": None}, "Missing.*project.bias"),
        (
            RAM,
            {"tagging_head.encoder.layer.0.attention.x": torch.ones(1)},
            r"Unexpected.*layers\.0\.attention\.x",
        ),
        (RAM_PLUS, {"label_embed": torch.ones(350, 512)}, r"\[-1, 51\] .* \(350\)"),
        (RAM, {"visual_encoder.patch_embed.proj.weight": torch.ones(1)}, "none of RAM's .*: swin"),
    ],
)
def test_unfit_file_is_refused(
    golden: str, change: dict[str, Tensor | None], reason: str, tmp_path: Path
) -> None:
    state = {**read_case(golden)[0], **change}
    with pytest.raises(CheckpointError, match=reason):
        run_file(tmp_path / "unfit.pth", {k: t for k, t in state.items() if t is not None})


@torch.inference_mode()
def test_descriptions_of_zeros_are_left_out() -> None:
    head = make_head(num_descriptions=5)
    tokens, texts = torch.randn(2, 9, 6), torch.randn(4, 3, 8)
    padded = torch.cat([texts, torch.zeros(4, 2, 8)], dim=1)
    torch.testing.assert_close(head(tokens, padded), head(tokens, texts))
    shorter = padded.clone()
    shorter[1, 1:] = 0
    alone = head(tokens, shorter[1, :1].unsqueeze(1))
    torch.testing.assert_close(head(tokens, shorter)[:, 1:2], alone)


@torch.inference_mode()
def test_head_without_projection_takes_the_class_token_as_it_comes() -> None:
    head = make_head(image_projection=False)
    tokens = torch.randn(2, 9, 8)
    assert head.remember(tokens) is tokens
    placed = make_head().remember(torch.randn(2, 9, 6))
    torch.testing.assert_close(placed[:, 0], placed[:, 1:].mean(dim=1))
