"""Sends mutated bodies to a real server: `python -m tests.fuzz.bodies --bodies 20000 --seed 0`.

Prints the count of each status; exits with 1 after a server error, or if a good request fails at
the end.
"""

import argparse
import base64
import json
import random
import sys
import tempfile
from collections import Counter
from itertools import islice
from pathlib import Path

import httpx2 as httpx

from tests.e2e.server_process import ServerProcess
from tests.fuzz.kinds import make_kinds, mutate_kinds
from tests.fuzz.seeds import mutate
from tests.support.photos import make_photo
from tests.support.tiny_bundle import write_open_bundle

_MULTIPART = "multipart/form-data; boundary=frontier"
_SERVER_ERROR = 500
_FAILURES = ("internal_error", "inference_failed")
Request = tuple[str, str, str, bytes]


def make_requests(images: list[bytes]) -> list[Request]:
    """Returns requests of these images: method, path, Content-Type, body."""
    requests: list[Request] = []
    for image in images:
        head = b'--frontier\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
        form = head + image + b"\r\n--frontier--\r\n"
        text = base64.b64encode(image).decode()
        asked = {"image": text, "top_k": 3, "threshold": 0.5, "include": ["cat", "dog"]}
        batch = {"images": [text] * 2}
        requests += [
            ("POST", "/predict", "image/png", image),
            ("POST", "/predict", _MULTIPART, form),
            ("POST", "/predict", "application/json", json.dumps(asked).encode()),
            ("POST", "/predict/batch", "application/json", json.dumps(batch).encode()),
        ]
    prompted = {"name": "dog", "prompt": "a dog", "threshold": 0.5}
    own = {"name": "own", "embedding": [0.1] * 6}
    body = json.dumps({"name": "pets", "labels": ["cat", prompted, own]}).encode()
    writing: list[Request] = [
        ("POST", "/labels", "application/json", body),
        ("PUT", "/labels/pets", "application/json", body),
        ("PATCH", "/labels/pets", "application/json", body),
    ]
    return requests + writing * (len(requests) // 8)


def send_mutated(client: httpx.Client, count: int, rng: random.Random) -> Counter[int]:
    """Sends requests, half of them mutated; returns the count of each status."""
    kinds = make_kinds()
    requests = make_requests([*kinds, *islice(mutate_kinds(kinds, rng), 500)])
    bodies = [body for *_, body in requests]
    statuses: Counter[int] = Counter()
    for _ in range(count):
        method, path, content_type, body = rng.choice(requests)
        sent = mutate(body, bodies, rng) if rng.random() < 0.5 else body
        response = client.request(
            method, path, content=sent, headers={"Content-Type": content_type}
        )
        # An item of a batch has an error of its own.
        broken = any(f'"code":"{code}"' in response.text for code in _FAILURES)
        status = max(response.status_code, _SERVER_ERROR if broken else 0)
        statuses[status] += 1
        if status >= _SERVER_ERROR:
            sys.stdout.write(f"{method} {path} {content_type}: {response.text} {sent!r}\n")
    return statuses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bodies", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bundle = write_open_bundle(Path(folder))
        flags = ("--port", "0", "--device", "cpu", "--label-store", "memory")
        with (
            ServerProcess("serve", "--bundle", str(bundle.path), *flags) as server,
            server.open_client() as client,
        ):
            statuses = send_mutated(client, arguments.bodies, random.Random(arguments.seed))
            good = client.post("/predict", files={"image": make_photo()})
    for status, count in sorted(statuses.items()):
        print(f"{status}: {count}")
    errors = sum(count for status, count in statuses.items() if status >= _SERVER_ERROR)
    print(f"{errors} server errors in {sum(statuses.values())} bodies")
    sys.exit(errors > 0 or good.status_code != httpx.codes.OK)


if __name__ == "__main__":
    main()
