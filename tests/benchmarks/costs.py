"""The cost of parts of the service: decoding, metrics, maps, graphs, bulk tagging, a long run.

    python -m tests.benchmarks.costs decode|metrics|explain|model|bulk|soak --help

Kinds that are compared take turns, since machines change their speed: read the ratios only.
"""

from __future__ import annotations

import asyncio
import gc
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import httpx2 as httpx
import numpy as np
import typer
from fastapi import FastAPI
from numpy.typing import NDArray
from PIL import Image

from service.bundle.card import InputContract
from service.bundle.manifest import GraphName
from service.bundle.reader import load_bundle
from service.cli.bulk.run import BulkJob, run_bulk
from service.engine.sessions import SessionConfig, open_session
from service.http.app import create_app
from service.http.responses.prediction_json import write_prediction
from service.http.telemetry.access import Access
from service.images import jpeg
from service.images.decode import decode_image
from service.pipeline.host import PipelineHost
from service.pipeline.pipeline import open_pipeline
from service.question import Question
from service.settings import MIB, Settings
from tests.benchmarks.load import Client, make_request, percentile
from tests.benchmarks.servers import BUNDLE, ROOT
from tests.e2e.server_process import ServerProcess
from tests.support.photos import encode_picture, make_photo, make_picture
from tests.support.tiny_bundle import write_tiny_bundle

app = typer.Typer(help=__doc__)


@app.command()
def decode(
    photos: Annotated[
        list[Path] | None, typer.Argument(help="Default: generated, of two sizes.")
    ] = None,
    *,
    rounds: int = 30,
) -> None:
    """Compares Pillow with the extra `fast` on one core: processor ms and pixels, of 255."""
    if not jpeg.AVAILABLE:
        raise SystemExit("the extra `fast` is not installed")
    contract = InputContract(height=240, width=240, resize_mode="squash", interpolation="bicubic")
    contents = {path.name: path.read_bytes() for path in photos or ()}
    for width, height in () if photos else ((500, 375), (4000, 3000)):
        astronaut = Image.open(ROOT / "docs/photos/astronaut.jpg")
        picture = astronaut.resize((width, height), Image.Resampling.LANCZOS)
        contents[f"{width} x {height}"] = encode_picture(picture, "JPEG", quality=90)
    print("| photo | Pillow ms | short way ms | ratio | difference |\n|---|---|---|---|---|")
    for name, data in contents.items():
        taken, pixels = defaultdict[bool, list[float]](list), {}
        for turn in range(2 * rounds):
            jpeg.AVAILABLE = fast = turn % 2 == 1
            started = time.process_time()
            decoded = decode_image(data, contract, Settings().max_pixels)
            taken[fast].append((time.process_time() - started) * 1000)
            pixels[fast] = decoded.pixels.astype(int)
        difference = np.abs(pixels[False] - pixels[True]).mean()
        slow, quick = map(np.median, taken.values())
        print(f"| {name} | {slow:.2f} | {quick:.2f} | {slow / quick:.2f} | {difference:.2f} |")


class _NoMetrics:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


@app.command()
def metrics(
    *,
    bundle: Annotated[Path | None, typer.Option(help="Default: a tiny one.")] = None,
    pairs: int = 4000,
    of: Annotated[float, typer.Option(help="Milliseconds of a prediction.")] = 5.0,
) -> None:
    """Compares the same app with and without metrics, in one process.

    With PROMETHEUS_MULTIPROC_DIR set, it measures the files that worker processes share.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = bundle or write_tiny_bundle(Path(folder)).path
        on, off = np.transpose(asyncio.run(_time_metrics(path, pairs))) * 1e6
    print(f"with metrics {np.median(on):.1f} us, without {np.median(off):.1f} us (medians)")
    paired = np.median(on - off)
    share = paired / np.median(off) * 100
    print(f"median of the differences {paired:.1f} us, {share:.2f} % of such a request")
    print(f"{paired / of / 10:.2f} % of a prediction of {of:g} ms")


async def _time_metrics(bundle: Path, pairs: int, warm_up: int = 200) -> list[list[float]]:
    """Returns the seconds of a request with metrics and of one without, for each pair."""
    apps = [await _open_app(bundle, counted=counted) for counted in (True, False)]
    seconds = []
    gc.disable()
    for pair in range(warm_up + pairs):
        took = [0.0, 0.0]
        for which in (0, 1) if pair % 2 else (1, 0):
            took[which] = await _time_request(apps[which])
        seconds.append(took)
    gc.enable()
    for each in apps:
        await each.state.host.drain()
    return seconds[warm_up:]


async def _open_app(bundle: Path, *, counted: bool) -> FastAPI:
    host = PipelineHost(Settings(bundle=bundle, device="cpu", label_store="memory"))
    opened = create_app(host)
    if not counted:
        host.observers.clear()
        (access,) = [layer for layer in opened.user_middleware if layer.cls is Access]  # type: ignore[comparison-overlap]
        access.kwargs["metrics"] = _NoMetrics()
    await host.open()
    return opened


async def _time_request(asgi: FastAPI) -> float:
    sent: list[MutableMapping[str, Any]] = []
    body = iter([{"type": "http.request", "body": make_photo()}])
    scope = {
        **{"type": "http", "method": "POST", "path": "/predict"},
        **{"query_string": b"label_set=trained", "headers": [(b"content-type", b"image/png")]},
    }

    async def receive() -> MutableMapping[str, Any]:
        for message in body:
            return message
        return await asyncio.Future()  # the client stays

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    started = time.perf_counter()
    await asgi(scope, receive, send)
    seconds = time.perf_counter() - started
    assert sent[0]["status"] == 200
    return seconds


@app.command()
def explain(
    *,
    data: Annotated[Path, typer.Option(help="Folder with images/.")],
    bundle: Path = BUNDLE,
    without: Annotated[Path | None, typer.Option(help="The same model without maps.")] = None,
    photos: int = 200,
) -> None:
    """Prints the processor time of requests with maps, relative to one without.

    A request is measured from the photo's bytes to the JSON of its answer; `no maps` is the same
    model exported without maps (`--without`).
    """
    paths = sorted((data / "images").iterdir())[:photos]
    contents = [path.read_bytes() for path in paths]
    asyncio.run(_time_maps(contents, bundle, without or bundle))


async def _time_maps(photos: list[bytes], *bundles: Path, warm_up: int = 5) -> None:
    settings = {"device": "cpu", "label_store": "memory", "deadline_ms": 600_000}
    mapped, plain = (open_pipeline(Settings(bundle=path, **settings)) for path in bundles)  # type: ignore[arg-type]
    for pipeline in (mapped, plain):
        await pipeline.start()
    heads = ("answered", "off", "true", "overlay", "no maps")
    print(f"{'label set':12} " + " ".join(f"{head:>8}" for head in heads))
    for label_set in (("trained",), ("everyday",), ("trained", "everyday")):
        for top_k in (1, 3, 10):
            off, on, overlay = (
                Question(top_k=top_k, label_set=label_set, explain=explained)
                for explained in (False, True, "overlay")
            )
            kinds = [(mapped, off), (mapped, on), (mapped, overlay), (plain, off)]
            seconds = np.zeros((len(photos), len(kinds)))
            for number, photo in enumerate(photos):
                for turn in range(len(kinds)):
                    kind = (number + turn) % len(kinds)
                    pipeline, question = kinds[kind]
                    started = time.process_time()
                    selection = await pipeline.select(question)
                    prediction = await pipeline.predict(photo, selection)
                    write_prediction(pipeline, selection, prediction, "explained")
                    seconds[number, kind] = time.process_time() - started
            medians = np.median(seconds[warm_up:], axis=0)
            row = " ".join(f"{ratio:8.3f}" for ratio in medians / medians[0])
            print(f"{'+'.join(label_set):16} {top_k:4} {row}", flush=True)
    for pipeline in (mapped, plain):
        await pipeline.drain()


@app.command()
def model(*, bundle: Path = BUNDLE, labels: int = 1000, rounds: int = 100) -> None:
    """Prints ms per image of a bundle's graphs on one core, without the service around them."""
    opened = load_bundle(bundle)
    graphs: tuple[GraphName, ...] = ("encoder", "trained_head", "open_head")
    sessions = {
        (precision, graph): open_session(opened, graph, SessionConfig("cpu", precision))
        for precision in opened.precisions()
        for graph in graphs
        if graph in opened.manifest.graphs
    }
    size, noise = opened.card.input, np.random.default_rng(0)
    seconds = defaultdict[tuple[str, str], list[float]](list)
    for _ in range(rounds):
        image = noise.integers(0, 256, (1, size.height, size.width, 3), dtype=np.uint8)
        feeds: dict[str, NDArray[np.generic]] = {"images": image}
        for key, session in sessions.items():
            if key[1] == "open_head":
                width = session.get_inputs()[1].shape[1]
                feeds["queries"] = noise.normal(size=(labels, width)).astype(np.float32)
            inputs = {entry.name: feeds[entry.name] for entry in session.get_inputs()}
            first = [session.get_outputs()[0].name]  # without the memory, like most requests
            started = time.perf_counter()
            (result,) = session.run(first, inputs)
            seconds[key].append(time.perf_counter() - started)
            if key[1] == "encoder":
                feeds["tokens"] = result
    print(f"{'ms an image, one core':24} {'median':>8} {'fastest tenth':>14}")
    for key, found in seconds.items():
        median, fast = (np.quantile(found, share) * 1000 for share in (0.5, 0.1))
        print(f"{' '.join(key):24} {median:8.2f} {fast:14.2f}")


@app.command()
def bulk(
    *,
    bundle: Annotated[Path, typer.Option()],
    photos: Annotated[int, typer.Option(help="Photos a round.")] = 400,
    rounds: int = 5,
) -> None:
    """Compares the throughput of `ml-decoder bulk` with the service's on the same cores.

    The service shares the cores with its clients; the seconds that they take are printed too.
    """
    serve = ("serve", "--bundle", str(bundle), "--port", "0", "--device", "cpu")
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{number:05}.jpg") for number in range(photos)]
        for number, path in enumerate(paths):
            path.write_bytes(encode_picture(make_picture(number, 640, 480), "JPEG", quality=90))
        with ServerProcess(*serve, "--log-level", "info") as server, server.open_client() as client:
            for number in range(rounds):
                served, cost = _serve_photos(client, paths)
                tagged = _tag_photos(bundle, folder)
                ratios.append(tagged / served)
                print(f"round {number + 1}: service {served:.1f} photos/s (its clients used "
                      f"{cost:.2f} cores), bulk {tagged:.1f} photos/s, ratio {ratios[-1]:.2f}",
                      flush=True)  # fmt: skip
    print(f"median ratio {np.median(ratios):.2f}")


def _serve_photos(client: httpx.Client, paths: list[Path]) -> tuple[float, float]:
    """Returns photos per second, and the cores that the clients used."""

    def ask(path: Path) -> None:
        content, headers = path.read_bytes(), {"Content-Type": "image/jpeg"}
        answer = client.post("/predict?label_set=trained", content=content, headers=headers)
        assert answer.status_code == 200, answer.text

    with ThreadPoolExecutor(16) as clients:
        list(clients.map(ask, paths[:32]))
        cost, started = time.process_time(), time.perf_counter()
        list(clients.map(ask, paths))
        seconds = time.perf_counter() - started
    return len(paths) / seconds, (time.process_time() - cost) / seconds


def _tag_photos(bundle: Path, photos: str) -> float:
    """Returns photos per second, from the first to the last report."""
    settings = Settings(bundle=bundle, device="cpu", label_store="memory")
    moments: list[float] = []

    with tempfile.TemporaryDirectory() as out:
        job = BulkJob(photos, out, Question(label_set=["trained"]), settings, part_size=100)
        totals = asyncio.run(run_bulk(job, lambda *_: moments.append(time.perf_counter())))
    assert totals.failed == 0
    return totals.tagged / (moments[-1] - moments[0])


@app.command()
def soak(
    *,
    bundle: Path = BUNDLE,
    minutes: float = 30.0,
    warm_up: Annotated[float, typer.Option(help="Minutes that do not count.")] = 5.0,
    clients: int = 4,
    device: str = "cpu",
) -> None:
    """Sends photos of mixed sizes for a long time and prints memory and latency every 10 s.

    Exits with 1 if memory grew by more than 3 % after the warm-up.
    """
    if minutes <= warm_up:
        raise typer.BadParameter("--minutes must be more than --warm-up")
    flags = ("--port", "0", "--device", device, "--label-store", "memory")
    with ServerProcess("serve", "--bundle", str(bundle), *flags) as server:
        seen = asyncio.run(_send_mixed_sizes(server, minutes, clients))
    after = [resident for minute, resident in seen if minute >= warm_up]
    # Means of a fifth at each end: a single look may fall into a large photo.
    few = max(1, len(after) // 5)
    growth = (sum(after[-few:]) / sum(after[:few]) - 1) * 100
    print(f"resident memory grew by {growth:.2f} % after {warm_up:g} minutes")
    raise typer.Exit(int(growth > 3))


async def _send_mixed_sizes(
    server: ServerProcess, minutes: float, clients: int
) -> list[tuple[float, int]]:
    """Prints a line every 10 s; returns the minutes and the resident bytes of each."""
    address = server.find_address()
    server.open_client().close()
    sizes = (32, 32), (320, 240), (1, 900), (1024, 768), (2000, 1500), (3000, 400), (640, 1800)
    requests = [
        make_request(encode_picture(make_picture(number, *size), file_format), "?top_k=3")
        for number, size in enumerate(sizes)
        for file_format in ("JPEG", "PNG", "WEBP")
    ]
    seconds: list[float] = []
    started = time.monotonic()
    ends = started + minutes * 60

    async def keep_asking(seed: int) -> None:
        client, chance = await Client.connect(address), random.Random(seed)
        while time.monotonic() < ends:
            status, taken = await client.ask(chance.choice(requests))
            assert status == 200, status
            seconds.append(taken)
        client.close()

    async def watch() -> list[tuple[float, int]]:
        seen: list[tuple[float, int]] = []
        asked = 0
        while time.monotonic() < ends:
            await asyncio.sleep(min(10, max(0.0, ends - time.monotonic())))
            last, seconds[:] = list(seconds), []
            asked += len(last)
            seen.append(((time.monotonic() - started) / 60, server.read_memory()))
            times = [f"{percentile(last, p) * 1000:6.1f}" for p in (50, 99)] if last else ["-", "-"]
            print(f"{seen[-1][0]:6.2f} min  {asked:8d} photos  {seen[-1][1] / MIB:7.1f} MiB  "
                  f"p50 {times[0]} ms  p99 {times[1]} ms", flush=True)  # fmt: skip
        return seen

    seen, *_ = await asyncio.gather(watch(), *(keep_asking(seed) for seed in range(clients)))
    return seen


if __name__ == "__main__":
    app()
