"""RAM from a checkpoint file to the answers of a real server.

Photos are bytes, so answers are compared with torch on the same pixels; `test_goldens.py` compares
torch with the authors' logits on the pixels before rounding.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from export.__main__ import main
from models.checkpoints.checkpoint import write_checkpoint
from models.config import InputConfig, NetworkConfig, RamConfig
from models.network import Network
from service.bundle.reader import load_bundle
from tests.e2e.server_process import ServerProcess, serve_command
from tests.export.tiny_network import run_torch
from tests.support.photos import encode_picture
from tests.support.serving import labels_of, send_image

TAGS, OTHERS = ([f"{name} {i}" for i in range(count)] for name, count in (("tag", 7), ("other", 5)))


def test_server_answers_as_torch_does(tmp_path: Path) -> None:
    torch.manual_seed(0)
    head = RamConfig(
        num_classes=7, encoder_width=256, text_width=8, decoder_width=16, feedforward_width=24
    )
    spec = InputConfig(height=64, width=64)
    network = Network(NetworkConfig(backbone="test_efficientnet", input=spec, head=head)).eval()
    stream = np.random.default_rng(0)
    pixels = stream.integers(0, 256, (2, 64, 64, 3), np.uint8)
    embeddings = stream.standard_normal((5, 8), dtype=np.float32)
    scores, others = (
        1 / (1 + np.exp(-run_torch(network, pixels, *given).astype(np.float64)))
        for given in ((), (torch.from_numpy(embeddings),))
    )
    # The file has no thresholds for the last two tags, which have 0.68.
    thresholds = np.append(scores.mean(axis=0)[:5].round(2), [0.68, 0.68])

    write_checkpoint(tmp_path / "ram.safetensors", network, (), {})
    (tmp_path / "tags.txt").write_text("\n".join(TAGS))
    (tmp_path / "thresholds.txt").write_text("\n".join(f"{each:.2f}" for each in thresholds[:5]))
    arguments = {
        "checkpoint": tmp_path / "ram.safetensors", "out": tmp_path / "ram", "precision": "fp32",
        "label-names": tmp_path / "tags.txt", "label-thresholds": tmp_path / "thresholds.txt",
        "license": "Apache-2.0",
    }  # fmt: skip
    assert main([f"--{name}={value}" for name, value in arguments.items()]) == 0
    bundle = load_bundle(tmp_path / "ram")
    assert (bundle.card.license, bundle.card.trained_head.kind) == ("Apache-2.0", "ram")

    # The other labels come in a file and in a request.
    (tmp_path / "sets").mkdir()
    np.savez(tmp_path / "sets" / "filed.npz", names=np.array(OTHERS), embeddings=embeddings)
    labels = [
        {"name": name, "embedding": row.tolist()}
        for name, row in zip(OTHERS, embeddings, strict=True)
    ]
    flags = ("--label-sets", str(tmp_path / "sets"), "--label-store", "memory")
    with ServerProcess(*serve_command(bundle, *flags)) as server, server.open_client() as client:
        made = client.post("/labels", json={"name": "sent", "labels": labels})
        assert made.status_code == 201, made.text
        for row, picture in enumerate(pixels):
            photo = encode_picture(Image.fromarray(picture))

            def predict(content: bytes = photo, **params: Any) -> dict[str, float]:
                return dict(labels_of(send_image(client, content, params=params)))

            names = np.array(TAGS)[scores[row] >= thresholds]
            assert sorted(predict()) == sorted(names)
            wanted = dict(zip(TAGS, scores[row], strict=True))
            every = predict(label_set="trained", threshold=0)
            assert every == pytest.approx(wanted, abs=1e-5)
            wanted = dict(zip(OTHERS, others[row], strict=True))
            for label_set in ("filed", "sent"):
                every = predict(label_set=label_set, threshold=0)
                assert every == pytest.approx(wanted, abs=1e-5)
                names = [name for name, score in wanted.items() if score >= 0.5]
                assert sorted(predict(label_set=label_set)) == sorted(names)
