"""What six attackers at once cost a client with photos; started by hand, with rows to leave out.

    python -m tests.faults.attackers GET PATCH

Each attacker loops over one request of few bytes. The client sends one photo after the other: alone
for 10 seconds, then with the attackers, twice each, and alone.
"""

import http.client
import multiprocessing
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import numpy as np

from tests.benchmarks.servers import BUNDLE
from tests.e2e.server_process import ServerProcess
from tests.faults.conftest import serve_command
from tests.faults.costs import Request, as_json, make_names
from tests.support.odd_files import make_dense_webp
from tests.support.photos import encode_picture, make_picture
from tests.support.serving import to_base64

SECONDS = 10
LABELS, ONE_LABEL_SETS = 50_000, 990


def make_rows() -> dict[str, Request]:
    """Returns the attackers' requests by name."""
    blank = make_dense_webp(736, 736)
    images = {"images": [to_base64(blank)] * 16}
    every = "?threshold=0&label_set="
    change = {"labels": [{"name": "label 7", "threshold": 0.5}]}
    sets = "/predict/batch?label_set=" + ",".join(make_names(ONE_LABEL_SETS))
    numbers = b'{"model":"x","input":[%b1]}' % (b"1," * 5_000_000)
    return {
        "GET": Request("", "GET", "/labels/big"),
        "predict": Request("", "POST", f"/predict{every}big", blank, "image/webp"),
        "batch": as_json("", "POST", f"/predict/batch{every}big", images),
        "PATCH": as_json("", "PATCH", "/labels/big", change),
        "sets": as_json("", "POST", sets, images),
        "embeddings": Request("", "POST", "/v1/embeddings", numbers, "application/json"),
    }


def ask_again(
    address: tuple[str, int], request: Request, ends: float, pause: float = 0
) -> Iterator[tuple[int, float]]:
    """Yields the status and the seconds of each request until a time."""
    connection = http.client.HTTPConnection(address[0], address[1], timeout=120)
    headers = {"Content-Type": request.content_type}
    while (started := time.monotonic()) < ends:
        connection.request(request.method, request.path, request.content, headers)
        response = connection.getresponse()
        response.read()
        yield response.status, time.monotonic() - started
        time.sleep(pause)


def attack(address: tuple[str, int], name: str, ends: float) -> None:
    answers = list(ask_again(address, make_rows()[name], ends))
    print(f"    {name}: {dict(Counter(status for status, _ in answers))}", flush=True)


def measure(address: tuple[str, int], names: list[str]) -> None:
    """Prints what the client sees while the named attackers send their requests."""
    ends = time.monotonic() + SECONDS + 1
    processes = [multiprocessing.Process(target=attack, args=(address, n, ends)) for n in names]
    for process in processes:
        process.start()
    time.sleep(1)
    live: list[tuple[int, float]] = []
    watcher = Thread(target=lambda: live.extend(ask_again(address, LIVEZ, ends, 0.05)))
    watcher.start()
    photo = Request("", "POST", "/predict", encode_picture(PICTURE, "JPEG"), "image/jpeg")
    answers = list(ask_again(address, photo, ends))
    watcher.join()
    half, most = np.percentile([1000 * seconds for _, seconds in answers], [50, 99])
    slowest = 1000 * max(seconds for _, seconds in live)
    statuses = dict(Counter(status for status, _ in answers))
    print(f"{len(names)} attackers: p50 {half:.0f} ms, p99 {most:.0f} ms, {statuses}, "
          f"slowest /livez {slowest:.0f} ms", flush=True)  # fmt: skip
    for process in processes:
        process.join()


LIVEZ = Request("", "GET", "/livez")
PICTURE = make_picture(0, 640, 480)


def main() -> None:
    names = [name for name in make_rows() if name not in sys.argv[1:]]
    with TemporaryDirectory() as folder:
        file, store = Path(folder, "big.npz"), str(Path(folder, "store.db"))
        embeddings = np.random.default_rng(0).normal(size=(LABELS, 384)).astype(np.float32)
        np.savez(file, names=[f"label {i}" for i in range(LABELS)], embeddings=embeddings)
        flags = ("--bundle", str(BUNDLE), "--label-store", store)
        command = (sys.executable, "-m", "service.cli", "labels", "import", str(file), *flags)
        subprocess.run(command, check=True)
        with ServerProcess(*serve_command(BUNDLE), "--label-store", store) as server:
            with server.open_client() as client:
                for name in make_names(ONE_LABEL_SETS):
                    client.put(f"/labels/{name}", json={"labels": [name]}).raise_for_status()
            for attackers in ([], names) * 2 + ([],):
                measure(server.find_address(), attackers)


if __name__ == "__main__":
    main()
