"""What six attackers at once cost a client with photos; started by hand.

    python -m tests.faults.attackers

Each attacker loops over one of the large requests of `costs.py`. The client sends one photo after
the other: alone for 10 seconds, then with the attackers, twice each, and alone.
"""

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np

from tests.faults.costs import (
    Address,
    Request,
    make_large_requests,
    send,
    serve_large,
    watch_health,
)
from tests.support.photos import encode_picture, make_picture

SECONDS = 10


def ask_again(address: Address, request: Request, ends: float) -> Iterator[tuple[int, float]]:
    """Yields the status and the milliseconds of each request until a time."""
    for number in count():
        if (started := time.monotonic()) > ends:
            return
        status, *_ = send(address, request, number)
        yield status, 1000 * (time.monotonic() - started)


def attack(address: Address, request: Request, ends: float) -> None:
    os.nice(19)  # the cores are the service's and the client's, as if attackers had their own
    statuses = Counter(status for status, _ in ask_again(address, request, ends))
    print(f"    {request.method} {request.what}: {dict(statuses)}", flush=True)


def measure(address: Address, requests: Sequence[Request]) -> None:
    """Prints what the client sees while an attacker sends each of the requests."""
    ends = time.monotonic() + SECONDS + 1
    processes = [multiprocessing.Process(target=attack, args=(address, r, ends)) for r in requests]
    for process in processes:
        process.start()
    time.sleep(1)
    picture = encode_picture(make_picture(0, 640, 480), "JPEG")
    photo = Request("", "POST", "/predict", picture, "image/jpeg")
    with watch_health(address) as health:
        answers = list(ask_again(address, photo, ends))
    half, most = np.percentile([taken for _, taken in answers], [50, 99])
    statuses = dict(Counter(status for status, _ in answers))
    print(f"{len(requests)} attackers: p50 {half:.0f} ms, p99 {most:.0f} ms, {statuses}, "
          f"slowest /livez {max(health):.0f} ms", flush=True)  # fmt: skip
    for process in processes:
        process.join()


def main() -> None:
    requests = [each for each in make_large_requests() if each.method != "HEAD"]
    with serve_large() as server:
        for attackers in ([], requests) * 2 + ([],):
            measure(server.find_address(), attackers)


if __name__ == "__main__":
    main()
