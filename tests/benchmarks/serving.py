"""The service by clients, workers and devices, against peers and a bare loop.

    python -m tests.benchmarks.serving --precision int8 --workers 1,auto
    python -m tests.benchmarks.serving --bundle BUNDLE --device cuda --precision fp16
    (add `--seconds 3 --rounds 1 --tries 1` to be ready in four minutes)

The bare loop decodes a photo and runs the model in one process, without HTTP, queue and labels.
*Limit* is its rate before and after each slice of load, since machines change their speed by the
minute. A round starts and measures each server once, in changing order. Other settings are read
from the environment, as in `ML_DECODER_QUEUE_SIZE=256`.
Prints medians, and quartiles of rates; latencies are of refusals too. Memory is PSS of all
processes; GPU memory is what the device has in use more than before the start. SIGTERM ends the
servers and prints the table of what was measured.
"""

import signal
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import psutil
import typer

from service.bundle.card import CPU_DEVICES
from service.bundle.reader import load_bundle
from service.engine.engine import open_engine
from service.engine.heads import TRAINED_HEAD
from service.errors import StartError
from service.images.decode import PixelArray, decode_image
from service.scheduling.cpu import count_cores
from service.settings import MIB, Settings
from tests.benchmarks.load import (
    Load,
    count_a_second,
    describe_loads,
    measure_load,
    measure_quietly,
)
from tests.benchmarks.machine import describe_machine, read_gpu_mib
from tests.benchmarks.servers import (
    BUNDLE,
    PHOTO,
    Running,
    Server,
    list_peers,
    list_variants,
    run_server,
    split_device,
)

_CPU_BATCH_SIZES, _GPU_BATCH_SIZES = (1, 2, 4, 8), (1, 8, 16, 32)
_LOOKS, _LOOK_SECONDS = 3, 1.0
_WARM_UP_CLIENTS = 32
_COLUMNS = ("memory MiB", "GPU MiB at start", "GPU MiB after load", "start s")


class Limit:
    """One bundle and one photo in this process, run in batches of the best size."""

    def __init__(self, bundle: Path, precision: str, photo: bytes) -> None:
        before = read_gpu_mib()
        device, precision = split_device(precision)
        opened, self._photo = load_bundle(bundle), photo
        self._cores, self._max_pixels = count_cores(), Settings().max_pixels
        self._contract = opened.card.input
        sizes = _CPU_BATCH_SIZES if device in CPU_DEVICES else _GPU_BATCH_SIZES
        self._engine = open_engine(
            opened,
            device=device,  # type: ignore[arg-type]
            precision=precision,  # type: ignore[arg-type]
            max_batch_size=max(sizes),
            threads=self._cores,
        )
        looks: dict[int, list[float]] = {size: [] for size in sizes}
        for _ in range(_LOOKS):
            for size in looks:
                images, threads = np.stack([self._decode()] * size), self._engine.workers
                run = partial(self._engine.run, images, [[TRAINED_HEAD]] * size)
                looks[size].append(size * count_a_second(run, threads, _LOOK_SECONDS))
        engine, self._size = max((statistics.median(rates), size) for size, rates in looks.items())
        decoding = count_a_second(self._decode, self._cores, _LOOK_SECONDS)
        both, lone = (self.measure(_LOOK_SECONDS, lone=lone) for lone in (False, True))
        memory = psutil.Process().memory_full_info().pss / MIB
        self.summary = (
            f"bare loop in one process, {device}, {precision}: decoding {decoding:.0f}, model "
            f"{engine:.0f} in batches of {self._size}, both {both:.0f}, one at a time {lone:.0f} "
            f"images/s; memory {memory:.0f} MiB, on GPUs {read_gpu_mib() - before:.0f}"
        )

    def measure(self, seconds: float, *, lone: bool) -> float:
        """Returns images per second: of all cores with full batches, or of one at a time."""
        if lone:
            return count_a_second(lambda: self._run(1, alone=True), 1, seconds)
        return self._size * count_a_second(lambda: self._run(self._size), self._cores, seconds)

    def _run(self, size: int, *, alone: bool = False) -> None:
        images = np.stack([self._decode() for _ in range(size)])
        self._engine.run(images, [[TRAINED_HEAD]] * size, alone=alone)

    def _decode(self) -> PixelArray:
        return decode_image(self._photo, self._contract, self._max_pixels).pixels


@dataclass
class Figures:
    loads: dict[int, list[Load]] = field(default_factory=lambda: defaultdict(list))
    rest: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


def main(  # noqa: PLR0913 - a parameter for each flag
    *,
    bundle: Path = BUNDLE,
    precision: Annotated[
        str, typer.Option(help="With commas between, or openvino:bf16; the first is the limit's.")
    ] = "int8,fp32",
    device: Annotated[str, typer.Option(help="Of precisions that name none.")] = "cpu",
    workers: Annotated[str, typer.Option(help="With commas between.")] = "1,auto",
    clients: Annotated[str, typer.Option(help="With commas between.")] = "1,8,32,128,256",
    photo: Path = PHOTO,
    peers: Annotated[Path | None, typer.Option(help="Folder with a bench.py.")] = None,
    only: Annotated[str, typer.Option(help="Names of peers, with commas between.")] = "",
    rounds: int = 3,
    seconds: Annotated[float, typer.Option(help="Of one slice of load.")] = 4.0,
    tries: Annotated[int, typer.Option(help="Of a slice that other processes disturb.")] = 4,
) -> None:
    """Compares servers with the limit of the machine."""
    content, counts = photo.read_bytes(), [int(count) for count in clients.split(",")]
    prefix = "" if device == "cpu" else f"{device}:"
    precisions = [each if ":" in each else prefix + each for each in precision.split(",")]
    servers = list_variants(bundle, precisions, content, workers)
    servers += list_peers(peers, photo, only)
    slices = len(counts) * (2 * seconds + 1) + seconds + 1
    minutes = (len(servers) * rounds * (slices + 10) + 20) / 60  # starts, and the limit's looks
    print(f"{' / '.join(server.name for server in servers)}: about {minutes:.1f} minutes, up to "
          f"{tries} times as many if disturbed", file=sys.stderr, flush=True)  # fmt: skip
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    print(f"{describe_machine()}\n\n{bundle.resolve().name}, {photo.name}; `wrk` takes some of the "
          f"same cores\n", flush=True)  # fmt: skip
    try:
        limit = Limit(bundle, precisions[0], content)
    except StartError as error:
        raise SystemExit(str(error)) from None
    print(f"{limit.summary}\n", flush=True)

    def measure(server: Server, running: Running, count: int) -> Load:
        def measure_slice() -> Load:
            before = limit.measure(seconds / 2, lone=count == 1)
            load = measure_load(running.address, server.request, count, seconds, running.pids())
            return replace(load, limit=(before + limit.measure(seconds / 2, lone=count == 1)) / 2)

        load = measure_quietly(measure_slice, tries)
        print(f"  {server.name} {count}: {load}", file=sys.stderr, flush=True)
        return load

    figures: dict[str, Figures] = defaultdict(Figures)
    try:
        for number in range(rounds):
            for server in servers if number % 2 == 0 else servers[::-1]:
                _measure_server(server, figures[server.name], counts, measure)
    finally:
        _print_table(figures, counts)


def _measure_server(
    server: Server,
    figures: Figures,
    counts: Sequence[int],
    measure: Callable[[Server, Running, int], Load],
) -> None:
    before, rest = read_gpu_mib(), figures.rest
    try:
        with run_server(server) as running:
            rest["start s"].append(running.cold_seconds)
            rest["GPU MiB at start"].append(read_gpu_mib() - before)
            measure_load(running.address, server.request, _WARM_UP_CLIENTS, 1, running.pids())
            for count in counts:
                figures.loads[count].append(measure(server, running, count))
            rest["memory MiB"].append(running.memory_mib())
            rest["GPU MiB after load"].append(read_gpu_mib() - before)
    except RuntimeError as error:  # the other servers are measured nevertheless
        print(f"{error}\n", flush=True)


def _print_table(figures: dict[str, Figures], counts: Sequence[int]) -> None:
    heads = [*(f"{count} clients" for count in counts), "errors", *_COLUMNS]
    print(f"| server | {' | '.join(heads)} |\n{'|---' * (len(heads) + 1)}|")
    for name, measured in figures.items():
        loads = [_describe(measured.loads[count]) for count in counts]
        errors = sum(load.errors for each in measured.loads.values() for load in each)
        rest = [measured.rest[column] for column in _COLUMNS]
        cells = [f"{statistics.median(each):.1f}" if any(each) else "-" for each in rest]
        print(f"| {' | '.join([name, *loads, str(errors), *cells])} |")


def _describe(loads: Sequence[Load]) -> str:
    if not loads:
        return "-"
    ratio = statistics.median(load.rate / load.limit for load in loads)
    return f"{describe_loads(loads)}, {ratio:.2f} of limit"


if __name__ == "__main__":
    typer.run(main)
