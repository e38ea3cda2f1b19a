"""The engine on a GPU next to torch's CUDA graph, with options of ONNX Runtime's CUDA provider.

    python -m tests.benchmarks.gpu --bundle FOLDER,FOLDER

Each row is measured in a process of its own. Speeds are images per second in batches of 1, 8 and 32
and in sizes that change with every run, with the copies to and from the GPU. Torch runs the
bundle's backbone with random weights and an ML-Decoder of D = 768. Memory is what the whole GPU
uses more than before. Options that ONNX Runtime refuses are a row with its reason; WRONG marks
scores too far from the CPU's. Exits with 1 if those of the default options are, with 2 without a
GPU. `--device cpu` tries this program out. `tests.benchmarks.same_model` writes bundles.
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import typer
from numpy.typing import NDArray

from service.bundle.card import Device, Precision
from service.bundle.reader import load_bundle
from service.engine.engine import Engine, open_engine
from service.engine.heads import TRAINED_HEAD, Images
from service.engine.sessions import first_line
from service.pipeline.scoring import compute_scores
from service.scheduling.cpu import count_cores
from tests.benchmarks.load import median_seconds
from tests.benchmarks.machine import read_gpu_mib
from tests.benchmarks.servers import BUNDLE
from tests.support.engines import why_no_gpu

VARIANTS = ("", "prefer_nhwc=1", "prefer_nhwc=1,fuse_conv_bias=1", "use_tf32=1")
PHOTOS = 8  # larger batches repeat them
_TILE = 32  # pixels of one colour: all photos of finer noise have nearly the same scores
_SIZES, _CHANGING, _MOST = (1, 8, 32), (1, 4, 2, 8), 32
_TOLERANCES: dict[Precision, float] = {"fp32": 1e-3, "fp16": 2e-2, "int8": 5e-2}
_COLUMNS = (
    *("bundle", "precision", "options", "1", "8", "32", "1 4 2 8"),
    *("of defaults", "of torch", "MiB", "scores within"),
)


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


@dataclass(frozen=True)
class Row:
    """Images per second, MiB of GPU memory and the largest difference of a score; or why not."""

    rates: tuple[float, ...] = ()
    memory: float = 0.0
    difference: float = np.inf
    refused: str = ""


def list_cases(bundles: str, precisions: str, device: str, seconds: float) -> list[Case]:
    """Returns a case for each bundle and each precision that it has."""
    cases = []
    for folder in map(Path, bundles.split(",")):
        bundle = load_bundle(folder)
        cpu = open_engine(bundle, device="cpu", precision="fp32", threads=count_cores())
        scores = score(cpu, make_images(folder, PHOTOS))
        cases += [
            Case(folder, precision, device, seconds, scores, cpu.width)  # type: ignore[arg-type]
            for precision in precisions.split(",")
            if precision in bundle.precisions()
        ]
    return cases


def measure_apart(case: Case) -> Row:
    """Measures in a new process, which may crash: an error that CUDA keeps ends only that one."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        try:
            return process.submit(measure, case).result()
        except BrokenProcessPool:
            return Row(refused="the process crashed")


def measure(case: Case) -> Row:
    """Returns the row of a case."""
    try:
        return measure_torch(case) if case.options == "torch" else measure_engine(case)
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        return Row(refused=first_line(error.__cause__ or error))


def measure_engine(case: Case) -> Row:
    before = read_gpu_mib()
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
    memory = read_gpu_mib() - before
    rates = tuple(
        sum(sizes) / median_seconds(partial(run, *sizes), case.seconds)
        for sizes in (*((size,) for size in _SIZES), _CHANGING)
    )
    expected = np.tile(case.scores, (_MOST // PHOTOS, 1))
    differences = []
    for start, size in enumerate((_MOST, 1, 4, 2, 16, 8, _MOST)):  # others than in the runs before
        batch, wanted = (np.roll(rows, -start, axis=0)[:size] for rows in (images, expected))
        differences.append(np.abs(score(engine, batch) - wanted).max())
    # `np.max` keeps NaN, Python's `max` may not.
    return Row(rates, memory, float(np.max(differences)))


def measure_torch(case: Case) -> Row:
    """Measures torch's CUDA graph: bytes of photos in, logits out."""
    import torch

    from models.backbones.backbone import input_config
    from models.config import MLDecoderConfig, NetworkConfig
    from models.network import Network

    if not torch.cuda.is_available():
        raise RuntimeError("torch has no CUDA here")
    before, rates = read_gpu_mib(), []
    card, images = load_bundle(case.bundle).card, make_images(case.bundle, _MOST)
    assert card.trained_head is not None
    backbone, size = card.provenance.backbone, (card.input.height, card.input.width)
    labels, width = card.trained_head.num_labels, case.width or 0
    head = MLDecoderConfig(encoder_width=width, num_classes=labels, num_groups=min(labels, 100))
    spec = input_config(backbone, size)
    network = Network(NetworkConfig(backbone=backbone, input=spec, head=head))
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
    return Row(tuple(rates), read_gpu_mib() - before, 0.0)


def make_images(bundle: Path, count: int) -> Images:
    contract = load_bundle(bundle).card.input
    shape = (PHOTOS, -(-contract.height // _TILE), -(-contract.width // _TILE), 3)
    tiles = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    photos = tiles.repeat(_TILE, 1).repeat(_TILE, 2)[:, : contract.height, : contract.width]
    return np.tile(photos, (-(-count // PHOTOS), 1, 1, 1))[:count]


def score(engine: Engine, images: Images) -> NDArray[np.float32]:
    results = engine.run(images, [[TRAINED_HEAD]] * len(images))
    return compute_scores(np.stack([logits for (logits,), *_ in results]), "sigmoid")


def is_right(case: Case, row: Row) -> bool:
    """Whether the scores differ by less than those of another photo; false for NaN."""
    spread = np.inf if case.precision == "int8" else float(case.scores.std(axis=0).mean())
    return row.difference <= min(_TOLERANCES[case.precision], spread)


def show(case: Case, row: Row, known: dict[str, Row]) -> None:
    """Prints a row; `known` has those to compare with."""
    cells = [case.bundle.name, case.precision, case.options or "defaults"]
    if row.refused:
        cells.append(row.refused)
    else:
        cells += [*(f"{rate:.0f}" for rate in row.rates), *["-"] * (4 - len(row.rates))]
        for other in ("", "torch"):
            rates = known[other].rates if other in known else ()
            cells.append(
                " ".join(f"{a / b:.2f}" for a, b in zip(row.rates, rates, strict=False)) or "-"
            )
        wrong = "" if is_right(case, row) else " WRONG"
        cells += [f"{row.memory:.0f}", f"{row.difference:.1e}{wrong}"]
    print(f"| {' | '.join(cells)} |", flush=True)


def main(
    *,
    bundle: str = str(BUNDLE),
    precision: str = "fp32,fp16",
    device: str = "cuda",
    variants: str = ";".join(VARIANTS),
    seconds: float = 0.4,
) -> None:
    """Prints the table; lists are separated by commas, variants by semicolons."""
    if device != "cpu" and (reason := why_no_gpu()):
        print(f"no GPU to measure: {reason}", file=sys.stderr)
        raise typer.Exit(2)
    cases = list_cases(bundle, precision, device, seconds)
    if not cases:
        raise SystemExit(f"no bundle has precision {precision}: see `same_model --precision`")
    is_wrong = False
    rows: list[dict[str, Row]] = [{} for _ in cases]
    print(f"| {' | '.join(_COLUMNS)} |\n{'|---' * len(_COLUMNS)}|", flush=True)
    for options in [""] if device == "cpu" else ["torch", *variants.split(";")]:
        for case, known in zip(cases, rows, strict=True):
            row = measure_apart(replace(case, options=options))
            show(replace(case, options=options), row, known)
            known[options] = row
            is_wrong |= not options and not is_right(case, row)
    raise typer.Exit(int(is_wrong))


if __name__ == "__main__":
    typer.run(main)
