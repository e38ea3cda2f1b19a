"""One row of `tests.benchmarks.gpu`, measured in a process of its own."""

import json
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.bundle.card import Device, Precision
from service.bundle.reader import load_bundle
from service.engine.engine import Engine, open_engine
from service.engine.heads import TRAINED_HEAD
from service.engine.sessions import first_line
from service.images.decode import PixelArray
from service.pipeline.scoring import compute_scores
from service.scheduling.cpu import count_cores
from tests.benchmarks.load import median_seconds

PHOTOS = 8  # larger batches repeat them
_TILE = 32  # pixels of one colour: all photos of finer noise have nearly the same scores
_SIZES, _CHANGING, _MOST = (1, 8, 32), (1, 4, 2, 8), 32


@dataclass(frozen=True)
class Case:
    """A row: `scores` [8, N] are the CPU's in fp32; `width` is that of tokens."""

    bundle: Path
    precision: Precision
    device: Device
    seconds: float
    scores: NDArray[np.float32]
    width: int | None
    options: str = ""  # or "torch"


def measure(case: Case) -> dict[str, Any]:
    """Returns images per second, MiB of GPU memory and the largest difference of a score."""
    before = _used_mib()
    engine = open_engine(
        load_bundle(case.bundle),
        device=case.device,
        precision=case.precision,
        max_batch_size=_MOST,
        threads=count_cores(),
        cuda_options=case.options,
    )
    images = make_images(case.bundle, _MOST)

    def run(*sizes: int) -> None:
        for size in sizes:
            engine.run(images[:size], [[TRAINED_HEAD]] * size)

    run(1, 2, 4, 8, 16, _MOST)
    memory = _used_mib() - before
    rates = [
        sum(sizes) / median_seconds(partial(run, *sizes), case.seconds)
        for sizes in (*((size,) for size in _SIZES), _CHANGING)
    ]
    expected = np.tile(case.scores, (_MOST // PHOTOS, 1))
    differences = []
    for start, size in enumerate((_MOST, 1, 4, 2, 16, 8, _MOST)):  # others than in the runs before
        batch, wanted = (np.roll(each, -start, axis=0)[:size] for each in (images, expected))
        differences.append(np.abs(score(engine, batch) - wanted).max())
    # `np.max` keeps NaN, Python's `max` may not.
    return {"rates": rates, "memory": memory, "difference": float(np.max(differences))}


def measure_torch(case: Case) -> dict[str, Any]:
    """Returns the same of torch's CUDA graph: bytes of photos in, logits out."""
    import torch

    from models.backbones.backbone import input_config
    from models.config import MLDecoderConfig, NetworkConfig
    from models.network import Network

    if not torch.cuda.is_available():
        raise RuntimeError("torch has no CUDA here")
    before, rates = _used_mib(), []
    card, images = load_bundle(case.bundle).card, make_images(case.bundle, _MOST)
    assert card.trained_head is not None
    backbone, size = card.provenance.backbone, (card.input.height, card.input.width)
    head = MLDecoderConfig(
        encoder_width=case.width or 0,
        num_classes=card.trained_head.num_labels,
        num_groups=min(card.trained_head.num_labels, 100),
        decoder_width=768,
        num_heads=8,
        feedforward_width=2048,
    )
    network = Network(
        NetworkConfig(backbone=backbone, input=input_config(backbone, size), head=head)
    )
    dtype = torch.half if case.precision == "fp16" else torch.float32
    torch.backends.cudnn.allow_tf32 = False  # as in our fp32
    network = network.eval().to("cuda", dtype).to(memory_format=torch.channels_last)
    for count in _SIZES:
        host = torch.from_numpy(images[:count]).pin_memory()
        pixels = torch.empty_like(host, device="cuda")
        forward = lambda: network(pixels.permute(0, 3, 1, 2).to(dtype) / 255)  # noqa: B023, E731
        with torch.inference_mode():
            stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
            with torch.cuda.stream(stream):
                for _ in range(3):
                    forward()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                logits = forward()
            answer = torch.empty(logits.shape, dtype=dtype, pin_memory=True)

            def run() -> None:
                pixels.copy_(host, non_blocking=True)  # noqa: B023
                graph.replay()  # noqa: B023
                answer.copy_(logits, non_blocking=True)  # noqa: B023
                torch.cuda.synchronize()

            rates.append(count / median_seconds(run, case.seconds))
    return {"rates": rates, "memory": _used_mib() - before, "difference": 0.0}


def make_images(bundle: Path, count: int) -> PixelArray:
    contract = load_bundle(bundle).card.input
    shape = (PHOTOS, -(-contract.height // _TILE), -(-contract.width // _TILE), 3)
    tiles = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    photos = tiles.repeat(_TILE, 1).repeat(_TILE, 2)[:, : contract.height, : contract.width]
    return np.tile(photos, (-(-count // PHOTOS), 1, 1, 1))[:count]


def score(engine: Engine, images: PixelArray) -> NDArray[np.float32]:
    results = engine.run(images, [[TRAINED_HEAD]] * len(images))
    return compute_scores(np.stack([logits for (logits,), *_ in results]), "sigmoid")


def _used_mib() -> int:
    """Returns the memory that the first visible GPU uses; 0 if `nvidia-smi` does not say it."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    query = ["nvidia-smi", f"--id={first}", "--query-gpu=memory.used"]
    try:
        return int(subprocess.check_output([*query, "--format=csv,noheader,nounits"], text=True))
    except (OSError, ValueError, subprocess.CalledProcessError):
        return 0


def answer() -> None:
    """Measures the case on standard input; prints the row as JSON in the last line."""
    case = pickle.load(sys.stdin.buffer)
    try:
        row = measure_torch(case) if case.options == "torch" else measure(case)
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        row = {"refused": first_line(error.__cause__ or error)}
    print(f"\n{json.dumps(row)}")
