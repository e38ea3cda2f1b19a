"""What the most expensive known request for its bytes costs on each route; started by hand.

    python -m tests.faults.costs

Bytes are those of head and body. Processor seconds and memory are the server's, from /proc; the
memory is the peak above that of the idle server, and what is left of it 1 second later. Units are
those of the rate limit; `/livez` is its slowest answer meanwhile. The rate limit refuses nothing:
each request comes from a loopback address of its own (Linux).
"""

import http.client
import json
import math
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import chain, count, islice, product
from pathlib import Path
from string import ascii_lowercase
from tempfile import TemporaryDirectory
from threading import Event

import numpy as np
import psutil
from PIL import Image

from service.bundle.reader import load_bundle
from service.http.requests.uploads import MAX_EXAMPLES
from service.http.routes.predict import MAX_BATCH_IMAGES
from service.pipeline.pipeline import limit_pixels
from service.question import MAX_EXPLAINED
from tests.benchmarks.servers import BUNDLE
from tests.e2e.server_process import ServerProcess, serve_command
from tests.support.odd_files import make_dense_webp
from tests.support.photos import encode_picture
from tests.support.serving import to_base64

KILOBYTE, MIB = 1000, 2**20
SET, LARGE = "costs", "big"
LARGE_LABELS, SMALL_SETS, NUMBERS = 50_000, 990, 5_000_000
_BOUNDARY = "b"
_BOMB_SIDE = 7000  # 49 megapixels
_SIDE = math.isqrt(limit_pixels(len(make_dense_webp(1, 1))))  # of the largest in as few bytes
DENSE = make_dense_webp(_SIDE, _SIDE)
_NEW = b"0.1000"  # a threshold, which differs each time: the same again would be no change
_ADDRESSES = map(str, map(ip_address, count(2**24 * 127 + 256)))
_RATE_SECONDS = 3600  # for each unit

Address = tuple[str, int]


@dataclass(frozen=True)
class Request:
    """A request as it goes over the wire, with as few headers as the server takes."""

    what: str
    method: str
    path: str
    content: bytes = b""
    content_type: str = ""

    def encode(self) -> bytes:
        lines = [f"{self.method} {self.path} HTTP/1.1", "Host:x"]
        if self.content:
            lines += [f"Content-Type:{self.content_type}", f"Content-Length:{len(self.content)}"]
        if self.content_type == "binary":
            length = self.content.index(b"]}") + 2
            lines.append(f"Inference-Header-Content-Length:{length}")
        return "\r\n".join([*lines, "", ""]).encode() + self.content


def as_json(what: str, method: str, path: str, value: object) -> Request:
    content = json.dumps(value, separators=(",", ":")).encode()
    return Request(what, method, path, content, "application/json")


def as_form(what: str, path: str, names: Sequence[str], photo: bytes) -> Request:
    part = b'--%b\r\nContent-Disposition:form-data;name="%b"\r\n\r\n%b\r\n'
    parts = [part % (_BOUNDARY.encode(), name.encode(), photo) for name in names]
    content = b"".join([*parts, b"--%b--\r\n" % _BOUNDARY.encode()])
    return Request(what, "POST", path, content, f"multipart/form-data;boundary={_BOUNDARY}")


def as_tensor(what: str, model: str, photo: bytes, count: int) -> Request:
    raw = (struct.pack("<I", len(photo)) + photo) * count
    size = f'"parameters":{{"binary_data_size":{len(raw)}}}'
    tensor = f'{{"name":"image","datatype":"BYTES","shape":[{count}],{size}}}'
    head = f'{{"inputs":[{tensor}]}}'.encode()
    return Request(what, "POST", f"/v2/models/{model}/infer", head + raw, "binary")


def make_names(count: int) -> list[str]:
    """Returns the shortest names: `a` to `z`, `aa` and so on."""
    letters = chain.from_iterable(product(ascii_lowercase, repeat=n) for n in (1, 2, 3))
    return ["".join(each) for each in islice(letters, count)]


def make_photos() -> Iterator[tuple[str, bytes]]:
    """Yields names and files of photos that take long for their bytes."""
    bomb = make_dense_webp(_BOMB_SIDE, _BOMB_SIDE)
    yield "WebP of 49 megapixels in 28 bytes", bomb
    yield f"WebP of {_SIDE} x {_SIDE} pixels", DENSE
    padding = (_BOMB_SIDE**2 - limit_pixels(0)) // (limit_pixels(1) - limit_pixels(0)) + 1
    yield "WebP of 49 megapixels, as short as read", bomb + bytes(padding)
    picture = Image.new("RGBA", (_BOMB_SIDE, _BOMB_SIDE))
    yield "PNG of 49 megapixels", encode_picture(picture, "PNG", compress_level=9)


def make_requests(model: str, label: str) -> Iterator[Request]:
    for what, photo in make_photos():
        yield Request(what, "POST", "/predict", photo, "image/webp")
        count, what = MAX_BATCH_IMAGES, f"16 x {what}"
        yield as_json(what, "POST", "/predict/batch", {"images": [to_base64(photo)] * count})
        yield as_tensor(what, model, photo, count)
        if len(photo) < KILOBYTE:
            path = f"/labels/everyday/calibrate?label={label}"
            yield as_form(f"200 x {what[5:]}", path, ["positive"] * MAX_EXAMPLES, photo)
    overlays = "explain=overlay&top_k="
    yield Request("100 overlays", "POST", f"/predict?{overlays}100", DENSE, "image/webp")
    images = {"images": [to_base64(DENSE)] * MAX_BATCH_IMAGES}
    few = MAX_EXPLAINED // MAX_BATCH_IMAGES
    yield as_json(f"16 x {few} overlays", "POST", f"/predict/batch?{overlays}{few}", images)
    yield Request("all labels", "POST", "/predict?threshold=0", DENSE, "image/webp")
    yield as_json("16 x all labels", "POST", "/predict/batch?threshold=0", images)
    for count in (50, 1000):
        path = f"/predict?candidate_labels={','.join(make_names(count))}"
        yield Request(f"{count} candidate labels", "POST", path, DENSE, "image/webp")
    yield from make_large_requests()
    yield as_json("2,000 labels", "PUT", f"/labels/{SET}", {"labels": make_names(2000)})
    for path in ("/labels", f"/labels/{SET}", "/labels/everyday", "/info", "/openapi.json",
                 "/docs", "/", "/metrics", "/readyz"):  # fmt: skip
        yield Request("", "GET", path)


def make_large_requests() -> Iterator[Request]:
    """Yields requests about the largest set, and about many."""
    for method in ("GET", "HEAD"):
        yield Request("50,000 labels", method, f"/labels/{LARGE}")
    body = {"images": [to_base64(DENSE)] * MAX_BATCH_IMAGES}
    every = f"label_set={LARGE}&threshold=0"
    yield Request("all of 50,000 labels", "POST", f"/predict?{every}", DENSE, "image/webp")
    yield as_json("16 x all of 50,000 labels", "POST", f"/predict/batch?{every}", body)
    changed = as_json("", "PATCH", "", {"labels": [{"name": "0", "threshold": 0.5}]}).content
    content = changed.replace(b"0.5", _NEW)
    path = f"/labels/{LARGE}"
    yield Request("a threshold of 50,000", "PATCH", path, content, "application/json")
    path = f"/predict/batch?label_set={','.join(make_names(SMALL_SETS))}"
    yield as_json(f"16 x {SMALL_SETS} sets", "POST", path, body)
    yield as_json("5 million numbers", "POST", "/v1/embeddings", {"input": [0] * NUMBERS})


@contextmanager
def serve_large(*flags: str) -> Iterator[ServerProcess]:
    """Yields a server of the default bundle with a large label set and many small ones."""
    head = load_bundle(BUNDLE).card.open_head
    assert head is not None
    shape = LARGE_LABELS, head.embedding_space.width
    rows = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    with TemporaryDirectory() as name:
        file, store, sets = (Path(name, each) for each in (f"{LARGE}.npz", "labels.db", "sets"))
        np.savez(file, names=np.arange(LARGE_LABELS).astype(str), embeddings=rows)
        stored = ("--label-store", str(store))
        command = [sys.executable, "-m", "service.cli", "labels", "import", str(file), *stored]
        subprocess.run([*command, "--bundle", str(BUNDLE)], check=True, stdout=subprocess.DEVNULL)
        sets.mkdir()
        for label, row in zip(make_names(SMALL_SETS), rows.tolist(), strict=False):
            labels = [{"name": label, "embedding": row}]
            (sets / f"{label}.json").write_text(json.dumps({"labels": labels}))
        flags = (*flags, *stored, "--label-sets", str(sets))
        with ServerProcess(*serve_command(BUNDLE), *flags) as server:
            server.wait_for_line("ready model=")
            yield server


def main() -> None:
    flags = ("--candidate-cache-size", "0", "--rate-limit", f"1/{_RATE_SECONDS}seconds")
    print("| request | what | bytes | processor s | s/kB | units | /livez ms | peak MB | left MB "
          "| answer kB |")  # fmt: skip
    print("|---" * 10 + "|")
    with serve_large(*flags) as server:
        for request in make_requests(load_bundle(BUNDLE).card.name, "lamp"):
            print(measure(server, request), flush=True)


def send(
    address: Address, request: Request, number: int = 0, source: str = "127.0.0.1"
) -> tuple[int, str, int]:
    """Returns status, `Retry-After` and the length of the answer."""
    raw = request.encode().replace(_NEW, b"0.1%03d" % (number % 1000))
    with socket.create_connection(address, 300, source_address=(source, 0)) as connection:
        connection.sendall(raw)
        response = http.client.HTTPResponse(connection, method=request.method)
        response.begin()
        return response.status, response.getheader("Retry-After", "0"), len(response.read())


@contextmanager
def watch_health(address: Address) -> Iterator[list[float]]:
    """Asks `/livez` in another thread until the end; yields the times in milliseconds."""
    times, ended = [0.0], Event()

    def ask() -> None:
        while not ended.wait(0.005):
            started = time.monotonic()
            send(address, Request("", "GET", "/livez"))
            times.append(1000 * (time.monotonic() - started))

    with ThreadPoolExecutor(1) as thread:
        thread.submit(ask)
        try:
            yield times
        finally:
            ended.set()


def measure(server: ServerProcess, request: Request) -> str:
    """Sends a request again and again for 1 second; returns a row of the table."""
    process, address = psutil.Process(server.pid), server.find_address()
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # resets VmHWM
    idle, before, ends = server.read_memory(), sum(process.cpu_times()[:2]), time.monotonic() + 1
    times, size = 0, len(request.encode())
    with watch_health(address) as health:
        while not times or time.monotonic() < ends:
            times, source = times + 1, next(_ADDRESSES)
            status, _, answered = send(address, request, times, source)
        seconds = (sum(process.cpu_times()[:2]) - before) / times
    refused = send(address, Request("", "GET", "/info"), source=source)
    units = math.ceil(int(refused[1]) / _RATE_SECONDS)
    time.sleep(1)
    peak, left = (server.read_memory(field) - idle for field in ("VmHWM", "VmRSS"))
    figures = (
        *(size, f"{seconds:.3f}", f"{seconds / size * KILOBYTE:.2f}"),
        *(units, f"{max(health):.0f}"),
        *(f"{max(0, more) / MIB:.0f}" for more in (peak, left)),
        f"{answered / KILOBYTE:.0f}",
    )
    path = request.path.partition("?")[0]
    shown = [f"{request.method} {path}", f"{request.what} ({status})", *map(str, figures)]
    return f"| {' | '.join(shown)} |"


if __name__ == "__main__":
    main()
