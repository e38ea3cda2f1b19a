"""RAM and RAM++ from a checkpoint file to the answers of a real server.

Photos are bytes, so answers are compared with torch on the same pixels; `test_goldens.py` compares
torch with the authors' logits on the pixels before rounding.
"""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from export.__main__ import main
from models.checkpoints.checkpoint import load_checkpoint, write_checkpoint
from models.config import InputConfig, NetworkConfig, RamConfig
from models.network import Network
from service.bundle.reader import Bundle, load_bundle
from tests.e2e.server_process import ServerProcess, serve_command
from tests.goldens import golden_names, read_golden
from tests.models.heads.test_goldens import write_official
from tests.support.serving import labels_of

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Pixels = NDArray[np.uint8]
Scores = NDArray[np.float64]


def write_tiny(path: Path, num_descriptions: int | None) -> Path:
    """Writes a network with seven tags."""
    torch.manual_seed(0)
    head = RamConfig(
        num_classes=7, encoder_width=256, text_width=8, decoder_width=16, feedforward_width=24,
        num_descriptions=num_descriptions,
    )  # fmt: skip
    spec = InputConfig(height=64, width=64, mean=MEAN, std=STD)
    network = Network(NetworkConfig(backbone="test_efficientnet", input=spec, head=head))
    write_checkpoint(path, network, (), {})
    return path


def export(checkpoint: Path, folder: Path, count: int, thresholds: Scores) -> Bundle:
    names, numbers = folder / "tags.txt", folder / "thresholds.txt"
    names.write_text("".join(f"tag {i}\n" for i in range(count)))
    numbers.write_text("".join(f"{value:.2f}\n" for value in thresholds))
    arguments = {
        "checkpoint": checkpoint, "out": folder / "ram", "precision": "fp32",
        "label-names": names, "label-thresholds": numbers, "license": "Apache-2.0",
    }  # fmt: skip
    assert main([f"--{name}={value}" for name, value in arguments.items()]) == 0
    return load_bundle(folder / "ram")


def run_torch(network: nn.Module, pixels: Pixels, *embeddings: NDArray[np.float32]) -> Scores:
    """Returns the scores of pixels uint8 [B, H, W, 3]."""
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, STD))
    with torch.inference_mode():
        images = (torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255 - mean) / std
        logits = network(images, *map(torch.from_numpy, embeddings))
    return np.asarray(logits.double().sigmoid())


@dataclass(frozen=True, eq=False)
class Expected:
    """The results of torch for B photos."""

    pixels: Pixels
    thresholds: Scores  # [N], of the tags
    tags: Scores  # [B, N]
    embeddings: NDArray[np.float32]  # of L other labels
    others: Scores  # [B, L]


def check_answers(bundle: Bundle, folder: Path, expected: Expected) -> None:
    """Compares a server's answers; the other labels come in a file and in a request."""
    embeddings = expected.embeddings
    names = [f"other {i}" for i in range(len(embeddings))]
    (folder / "sets").mkdir()
    np.savez(folder / "sets" / "filed.npz", names=np.array(names), embeddings=embeddings)
    flat = embeddings.reshape(len(names), -1).tolist()
    labels = [{"name": n, "embedding": row} for n, row in zip(names, flat, strict=True)]
    flags = ("--label-sets", str(folder / "sets"), "--label-store", str(folder / "labels.db"))
    with ServerProcess(*serve_command(bundle, *flags)) as server, server.open_client() as client:
        made = client.post("/labels", json={"name": "sent", "labels": labels})
        assert made.status_code == 201, made.text
        for row, picture in enumerate(expected.pixels):
            content = io.BytesIO()
            Image.fromarray(picture).save(content, "PNG")

            def predict(content: bytes = content.getvalue(), **params: Any) -> dict[str, float]:
                answer = client.post("/predict", files={"image": content}, params=params)
                return dict(labels_of(answer))

            scores = expected.tags[row]
            found = [f"tag {i}" for i in (scores >= expected.thresholds).nonzero()[0]]
            assert sorted(predict()) == sorted(found)
            every = predict(label_set="trained", threshold=0)
            wanted = {f"tag {i}": score for i, score in enumerate(scores)}
            assert every == pytest.approx(wanted, abs=1e-5)
            wanted = dict(zip(names, expected.others[row], strict=True))
            for label_set in ("filed", "sent"):
                found = [name for name, score in wanted.items() if score >= 0.5]
                assert sorted(predict(label_set=label_set)) == sorted(found)
                every = predict(label_set=label_set, threshold=0)
                assert every == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("num_descriptions", [None, 4])
def test_server_answers_as_torch_does(tmp_path: Path, num_descriptions: int | None) -> None:
    checkpoint = write_tiny(tmp_path / "ram.safetensors", num_descriptions)
    network = load_checkpoint(checkpoint)
    stream = np.random.default_rng(0)
    pixels = stream.integers(0, 256, (2, 64, 64, 3), np.uint8)
    shape = (5, 8) if num_descriptions is None else (5, 3, 8)
    embeddings = stream.standard_normal(shape, dtype=np.float32)
    scores, others = run_torch(network, pixels), run_torch(network, pixels, embeddings)
    # The file has no thresholds for the last two tags, which have 0.68.
    thresholds = scores.mean(axis=0)[:5].round(2)
    bundle = export(checkpoint, tmp_path, 7, thresholds)
    assert (bundle.card.license, bundle.card.trained_head.kind) == ("Apache-2.0", "ram")
    own = np.append(thresholds, [0.68, 0.68])
    check_answers(bundle, tmp_path, Expected(pixels, own, scores, embeddings, others))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*golden_names("ram_plus_swin"), *golden_names("ram_swin")])
def test_server_answers_as_the_authors_network_does(tmp_path: Path, name: str) -> None:
    golden = read_golden(name)
    path = write_official(golden, tmp_path / "official.pth", "ram")
    images = golden.inputs[0].transpose(0, 2, 3, 1) * np.float32(STD) + np.float32(MEAN)
    pixels = np.rint(images * 255).astype(np.uint8)
    network = load_checkpoint(path)
    scores = run_torch(network, pixels)
    embeddings = golden.inputs[1] if len(golden.inputs) > 1 else golden.state["label_embed"]
    if golden.config["descriptions"] > 1:
        embeddings = embeddings.reshape(-1, golden.config["descriptions"], 512)[:4, :20]
    others = run_torch(network, pixels, embeddings)
    thresholds = np.array(golden.config["threshold_lines"], np.float64)
    bundle = export(path, tmp_path, scores.shape[1], thresholds)
    expected = Expected(pixels, thresholds, scores, embeddings, others)
    check_answers(bundle, tmp_path, expected)
    # Rounding the pixels moves the authors' own scores by less than this.
    recorded = others if len(golden.inputs) > 1 else scores
    assert np.abs(recorded - 1 / (1 + np.exp(-golden.expected))).max() < 0.05
