"""Reads mutated label set files in a process with 1 GB of memory: one line or a set, in 1 s each.

python -m tests.faults.forged 20000 --seed 0
"""

import io
import random
import re
import resource
import signal
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from service.errors import StartError
from service.labels.examples import Examples
from service.labels.files import pack_label_set, read_label_set_file
from tests.fuzz.seeds import mutate as mutate_bytes
from tests.support.label_store import define, make_examples

_MEMORY_BYTES = 1 << 30
_NUMBERS = [*b"0 -1 2 1e999 65536 300000000".split(), b"9" * 19, b"9" * 5000, b"[" * 999]
_COMPRESSIONS = [*[zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED] * 4, zipfile.ZIP_BZIP2]
_LEARNT = {name: Examples.empty(8).add(make_examples(2)) for name in "ab"}
_LABELS = define("pets", "a", "b", "c", given=(2,), examples=_LEARNT, encoder="e" * 64)
_SEEDS = {
    ".npz": pack_label_set(_LABELS, np.eye(3, 6, dtype=np.float32)),
    ".json": b'{"labels": ["a", {"name": "b", "embedding": [1, 2e1], "threshold": 0.5}]}',
    ".csv": b'name,prompt,threshold\ncat,"a cat, asleep",0.5\ndog,,\n',
    ".txt": b"cat\nwooden table\n",
}


def mutate(content: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """Returns content with other bytes or another number; of an archive mostly in a member."""
    if content.startswith(b"PK") and rng.random() < 0.8:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        name, file = rng.choice([*members]), io.BytesIO()
        members[name] = mutate(members[name], [*members.values()], rng)
        with zipfile.ZipFile(file, "w", rng.choice(_COMPRESSIONS)) as archive:
            for name, member in members.items():
                archive.writestr(name, member)
        return file.getvalue()
    numbers = [match.span() for match in re.finditer(rb"\d+", content[:1000])]
    if numbers and rng.random() < 0.5:
        begin, end = rng.choice(numbers)
        return content[:begin] + rng.choice(_NUMBERS) + content[end:]
    if rng.random() < 0.5:
        at = rng.randrange(len(content))
        return content[:at] + rng.randbytes(1) + content[at + 1 :]
    return mutate_bytes(content, others, rng)


def read_mutants(count: int, seed: int) -> tuple[Counter[str], int]:
    """Returns numbers of files by ending and end, and the memory taken in kB, in this process."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    signal.signal(signal.SIGVTALRM, signal.default_int_handler)
    rng, counts = random.Random(seed), Counter[str]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(count):
            ending = rng.choice([*_SEEDS, ".npz", ".npz"])
            path = Path(folder, f"pets{ending}")
            path.write_bytes(mutate(_SEEDS[ending], [*_SEEDS.values()], rng))
            signal.setitimer(signal.ITIMER_VIRTUAL, 1)
            try:
                read_label_set_file(path)
                counts[f"{ending} set"] += 1
            except StartError as error:
                counts[f"{ending} lines: {len(str(error).splitlines())}"] += 1
            except BaseException as error:
                raise AssertionError(f"{ending} {path.read_bytes()!r:.2000}") from error
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return counts, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


def run_apart(count: int, seed: int = 0) -> tuple[Counter[str], int]:
    """Returns `read_mutants` of a new process; raises what it raises."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(read_mutants, count, seed).result()


if __name__ == "__main__":
    sys.stdout.write(f"{run_apart(*map(int, sys.argv[1:] or [20_000]))}\n")
