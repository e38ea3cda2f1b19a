"""What the most expensive known request for its bytes costs on each route; started by hand.

    python -m tests.faults.costs

Bytes are those of head and body. Processor seconds and memory are the server's, from /proc; the
memory is the peak above that of the idle server, and what is left of it 1 second later.
"""

import http.client
import json
import math
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, product
from pathlib import Path
from string import ascii_lowercase

import psutil
from PIL import Image

from service.http.requests.uploads import MAX_EXAMPLES
from service.http.routes.predict import MAX_BATCH_IMAGES
from service.pipeline.pipeline import limit_pixels
from service.question import MAX_EXPLAINED
from tests.benchmarks.servers import BUNDLE
from tests.e2e.server_process import ServerProcess
from tests.faults.conftest import serve_command
from tests.support.odd_files import make_dense_webp
from tests.support.photos import encode_picture
from tests.support.serving import to_base64

KILOBYTE, MIB = 1000, 2**20
SET = "costs"
_BOUNDARY = "b"
_BOMB_SIDE = 7000  # 49 megapixels


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
    side = math.isqrt(limit_pixels(len(bomb)))
    yield f"WebP of {side} x {side} pixels", make_dense_webp(side, side)
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
    dense = dict(islice(make_photos(), 2)).popitem()[1]
    overlays = "explain=overlay&top_k="
    yield Request("100 overlays", "POST", f"/predict?{overlays}100", dense, "image/webp")
    images = {"images": [to_base64(dense)] * MAX_BATCH_IMAGES}
    few = MAX_EXPLAINED // MAX_BATCH_IMAGES
    yield as_json(f"16 x {few} overlays", "POST", f"/predict/batch?{overlays}{few}", images)
    yield Request("all labels", "POST", "/predict?threshold=0", dense, "image/webp")
    yield as_json("16 x all labels", "POST", "/predict/batch?threshold=0", images)
    for count in (50, 1000):
        path = f"/predict?candidate_labels={','.join(make_names(count))}"
        yield Request(f"{count} candidate labels", "POST", path, dense, "image/webp")
    yield as_json("2,000 labels", "PUT", f"/labels/{SET}", {"labels": make_names(2000)})
    for path in ("/labels", f"/labels/{SET}", "/labels/everyday", "/info", "/openapi.json",
                 "/docs", "/", "/metrics", "/readyz"):  # fmt: skip
        yield Request("", "GET", path)


def main() -> None:
    flags = ("--label-store", "memory", "--candidate-cache-size", "0")
    print("| route | request | bytes | processor s | s/kB | peak MB | left MB | answer kB |")
    print("|---|---|---|---|---|---|---|---|")
    with ServerProcess(*serve_command(BUNDLE), *flags) as server:
        with server.open_client() as client:
            model = client.get("/info").json()["model"]["name"]
            label = client.get("/labels/everyday").json()["labels"][0]["name"]
        for request in make_requests(model, label):
            print(measure(server, request), flush=True)


def measure(server: ServerProcess, request: Request) -> str:
    """Sends a request again and again for 1 second; returns a row of the table."""
    process, raw = psutil.Process(server.pid), request.encode()
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # resets VmHWM
    idle, before, ends = server.read_memory(), sum(process.cpu_times()[:2]), time.monotonic() + 1
    times = answered = 0
    while not times or time.monotonic() < ends:
        with socket.create_connection(server.find_address(), timeout=300) as connection:
            connection.sendall(raw)
            response = http.client.HTTPResponse(connection, method=request.method)
            response.begin()
            answered = len(response.read())
            times += 1
    seconds = (sum(process.cpu_times()[:2]) - before) / times
    time.sleep(1)
    peak, left = (server.read_memory(field) - idle for field in ("VmHWM", "VmRSS"))
    figures = (
        *(len(raw), f"{seconds:.3f}", f"{seconds / len(raw) * KILOBYTE:.2f}"),
        *(f"{max(0, size) / MIB:.0f}" for size in (peak, left)),
        f"{answered / KILOBYTE:.0f}",
    )
    path = request.path.partition("?")[0]
    shown = [f"{request.method} {path}", f"{request.what} ({response.status})", *map(str, figures)]
    return f"| {' | '.join(shown)} |"


if __name__ == "__main__":
    main()
