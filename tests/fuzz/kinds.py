"""Decodes mutated files of all kinds in a child process, which may end by a signal.

`python -m tests.fuzz.kinds --seconds 600` decodes with the extras that are installed; `fast` and
`heif` should be. Files that end a process go to `--out`. The exit code is 1 if there are any.
"""

import argparse
import random
import signal
import struct
import subprocess
import sys
import time
import warnings
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from service.bundle.card import InputContract
from service.errors import ImageError
from service.images.decode import decode_image
from service.images.formats import FORMATS
from tests.fuzz.seeds import make_seeds, mutate
from tests.support.heif_files import make_grid
from tests.support.unread_files import FRAMES, make_jpeg, make_unread_files

_MAX_PIXELS = 300_000
_SIDES = (1, 8, 24, 48, 96, 192, 320)
_PNG = b"\x89PNG\r\n\x1a\n"


def make_kinds() -> list[bytes]:
    """Returns the seeds of `make_seeds`, and JPEGs of all processes, depths and components."""
    jpegs = [
        make_jpeg(frame, (320, 200), components, bits)
        for frame in FRAMES
        for components in (1, 2, 3, 4)
        for bits in (8, 12)
    ]
    grids = [make_grid(4, (64, 64), (250, 64))] if "HEIF" in FORMATS else []
    return [*make_seeds(), *jpegs, *grids, *(file for file, _ in make_unread_files().values())]


def mutate_kinds(seeds: Sequence[bytes], rng: random.Random) -> Iterator[bytes]:
    """Yields mutated seeds without end; most of half of them stays, so that decoders go far."""
    while True:
        file = rng.choice(seeds)
        if rng.random() < 0.5:
            file = mutate(file, seeds, rng)
        else:
            changed = bytearray(file)
            for _ in range(rng.randint(1, 3)):
                end = len(changed) if rng.random() < 0.5 else min(len(changed), 200)
                changed[rng.randrange(end)] = rng.randrange(256)
            file = bytes(changed)
        yield _mend_checksums(file) if file.startswith(_PNG) else file


def _mend_checksums(png: bytes) -> bytes:
    """Returns a PNG with the right checksums: the decoder refuses others before it decodes."""
    mended, position = bytearray(png), len(_PNG)
    while position + 12 <= len(png):
        (length,) = struct.unpack_from(">I", png, position)
        end = position + 8 + length
        if end + 4 > len(png):
            break
        struct.pack_into(">I", mended, end, zlib.crc32(png[position + 4 : end]))
        position = end + 4
    return bytes(mended)


def decode_kinds(seed: int, place: Path) -> None:
    """Decodes files until the process ends; each is in `place` while it is decoded."""
    warnings.simplefilter("ignore")  # Pillow warns of repairs
    rng = random.Random(seed)
    for file in mutate_kinds(make_kinds(), rng):
        contract = InputContract(
            height=rng.choice(_SIDES),
            width=rng.choice(_SIDES),
            resize_mode=rng.choice(("squash", "squash", "crop", "pad")),
            fit_size=rng.choice((None, 20)),
            interpolation=rng.choice(("nearest", "bilinear", "bicubic", "lanczos")),
            crop_pct=rng.choice((0.5, 1.0)),
        )
        place.write_bytes(file)
        try:
            pixels = decode_image(file, contract, _MAX_PIXELS).pixels
        except ImageError:
            continue
        assert pixels.shape == (contract.height, contract.width, 3)
        assert pixels.max() >= 0  # reads all of them


def watch_decoding(seconds: float, seed: int, out: Path) -> int:
    """Runs children for a time; returns the number that ended by themselves."""
    out.mkdir(parents=True, exist_ok=True)
    ends, crashes = time.monotonic() + seconds, 0
    while (left := ends - time.monotonic()) > 0:
        place = out / f"seed-{seed}"
        command = (sys.executable, "-m", "tests.fuzz.kinds", "--child", str(seed), "--out", place)
        try:
            done = subprocess.run(command, timeout=left, check=False)
        except subprocess.TimeoutExpired:
            place.unlink(missing_ok=True)
            break
        name = signal.Signals(-done.returncode).name if done.returncode < 0 else "an error"
        print(f"{place}: the process ended with {name}", flush=True)
        crashes += 1
        seed += 1
    return crashes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("crashes"))
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        decode_kinds(arguments.child, arguments.out)
    crashes = watch_decoding(arguments.seconds, arguments.seed, arguments.out)
    print(f"{crashes} crashes")
    sys.exit(crashes > 0)


if __name__ == "__main__":
    main()
