"""Compares the options of a GPU: speed, memory and scores of the engine, and torch's CUDA graph.

    python -m tests.benchmarks.gpu --bundle FOLDER,FOLDER

Each row is measured in a process of its own. Speeds are images per second in batches of 1, 8 and 32
and in sizes that change with every run, with the copies to and from the GPU. Torch runs the
bundle's backbone with random weights and an ML-Decoder of D = 768. Memory is what the whole GPU
uses more than before. Options that ONNX Runtime refuses are a row with its reason; WRONG marks
scores too far from the CPU's. Exits with 1 if those of the default options are, with 2 without a
GPU. `--device cpu` tries this program out. `tests.benchmarks.same_model` writes bundles.
"""

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import typer

from service.bundle.card import Precision
from service.bundle.reader import load_bundle
from service.engine.engine import open_engine
from service.scheduling.cpu import count_cores
from tests.benchmarks.gpu_row import PHOTOS, Case, make_images, score
from tests.benchmarks.servers import BUNDLE
from tests.support.engines import why_no_gpu

VARIANTS = ("", "prefer_nhwc=1", "prefer_nhwc=1,fuse_conv_bias=1", "use_tf32=1")
_TOLERANCES: dict[Precision, float] = {"fp32": 1e-3, "fp16": 2e-2, "int8": 5e-2}
_COLUMNS = (
    *("bundle", "precision", "options", "1", "8", "32", "1 4 2 8"),
    *("of defaults", "of torch", "MiB", "scores within"),
)
_ROW_SECONDS = 90.0


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


def allow(case: Case) -> float:
    """Returns the largest difference of a right score: less than that of another photo."""
    spread = np.inf if case.precision == "int8" else float(case.scores.std(axis=0).mean())
    return min(_TOLERANCES[case.precision], spread)


def measure_apart(case: Case) -> dict[str, Any]:
    """Measures in a new process, which may crash: an error that CUDA keeps ends only that one."""
    command = [sys.executable, "-c", "from tests.benchmarks.gpu_row import answer; answer()"]
    try:
        child = subprocess.run(
            command, input=pickle.dumps(case), capture_output=True, timeout=_ROW_SECONDS
        )
        row: dict[str, Any] = json.loads(child.stdout.decode().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"refused": f"no result after {_ROW_SECONDS:.0f} s"}
    except (ValueError, IndexError):
        said = child.stderr.decode(errors="replace").strip().splitlines()
        return {"refused": f"exit code {child.returncode}: {' '.join(said[-2:])[:300]}"}
    return row


def show(case: Case, row: dict[str, Any], known: dict[str, list[float]]) -> None:
    """Prints a row; `known` has the speeds to compare with."""
    start = f"| {case.bundle.name} | {case.precision} | {case.options or 'defaults'} |"
    if "refused" in row:
        print(f"{start} {row['refused']} |", flush=True)
        return
    rates, difference = row["rates"], row["difference"]
    ratios = [
        " ".join(f"{a / b:.2f}" for a, b in zip(rates, known.get(other, ()), strict=False)) or "-"
        for other in ("", "torch")
    ]
    wrong = "" if difference <= allow(case) else " WRONG"  # also NaN
    cells = [*(f"{rate:.0f}" for rate in rates), *["-"] * (4 - len(rates)), *ratios]
    cells += [str(row["memory"]), f"{difference:.1e}{wrong}"]
    print(f"{start} {' | '.join(cells)} |", flush=True)


def main(
    *,
    bundle: str = str(BUNDLE),
    precision: str = "fp32,fp16",
    device: str = "cuda",
    variants: str = ";".join(VARIANTS),
    seconds: float = 0.4,
) -> None:
    """Prints the table; lists are separated by commas, variants by semicolons."""
    is_wrong = False
    if device != "cpu" and (reason := why_no_gpu()):
        print(f"no GPU to measure: {reason}", file=sys.stderr)
        raise typer.Exit(2)
    cases = list_cases(bundle, precision, device, seconds)
    if not cases:
        raise SystemExit(f"no bundle has precision {precision}: see `same_model --precision`")
    speeds: list[dict[str, list[float]]] = [{} for _ in cases]
    print(f"| {' | '.join(_COLUMNS)} |\n{'|---' * len(_COLUMNS)}|", flush=True)
    for options in [""] if device == "cpu" else ["torch", *variants.split(";")]:
        for case, known in zip(cases, speeds, strict=True):
            row = measure_apart(replace(case, options=options))
            show(replace(case, options=options), row, known)
            known[options] = row.get("rates", [])
            if not options:
                is_wrong |= not row.get("difference", np.inf) <= allow(case)
    raise typer.Exit(int(is_wrong))


if __name__ == "__main__":
    typer.run(main)
