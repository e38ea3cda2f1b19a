"""Reads mutated label set files and models' configurations, with 1 GB of memory more.

    python -m tests.faults.forged --labels 100000 --models 20000

Each mutant is read or refused in one line, a label set in 1 s of processor time and a model in 20.
Good files are read at last. The first other outcome ends the run, with its mutant.
"""

import argparse
import io
import json
import random
import re
import resource
import signal
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil
import timm
import torch
from safetensors.torch import load, save, save_file

from export.sources.trained import read_source
from models.checkpoints.checkpoint import write_checkpoint
from models.commands import RequestError
from models.text import read_text_encoder
from service.errors import StartError
from service.labels.files import pack_label_set, read_label_set_file
from service.labels.sources.examples import Examples
from tests.export.tiny_network import LABELS, make_network
from tests.fuzz.seeds import mutate as mutate_bytes
from tests.models.tiny_text import write_text_encoder
from tests.models.tiny_towers import KINDS, write_towers
from tests.support.label_store import define, make_examples

_MEMORY_BYTES = 1 << 30
_VALUE = re.compile(rb'"[^"]*"(?!:)|[-+.\w]+|\[\]|{}')  # of JSON, and of the headers of arrays
_ABSURD = [
    *b'0 -1 2 1e999 NaN 65536 2147483648 300000000 "x" "" null true [] [[1]] {} {"a":1}'.split(),
    *(b"9" * 19, b"9" * 5000, b"[2147483648,2147483648]", b"[" * 999, b"[" * 500 + b"]" * 500),
]
_NO_MEMORY = "MemoryError|allocate memory|Unable to allocate"
_COMPRESSIONS = [*[zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED] * 4, zipfile.ZIP_BZIP2]


def write_label_sets(folder: Path) -> list[Path]:
    learnt = {name: {"examples": Examples.empty(8).add(make_examples(2))} for name in "ab"}
    labels = define("pets", "a", "b", "c", given=(2,), lessons=learnt, encoder="e" * 64)
    contents = {
        ".npz": pack_label_set(labels, np.eye(3, 6, dtype=np.float32)),
        ".json": b'{"labels": ["a", {"name": "b", "embedding": [1, 2e1], "threshold": 0.5}]}',
        ".csv": b'name,prompt,threshold\ncat,"a cat, asleep",0.5\ndog,,\n',
        ".txt": b"cat\nwooden table\n",
    }
    for suffix, content in contents.items():
        (folder / f"pets{suffix}").write_bytes(content)
    return [folder / f"pets{suffix}" for suffix in (*contents, ".npz", ".npz")]


def write_models(folder: Path) -> list[Path]:
    """Returns the files to mutate; a safetensors file has JSON in its metadata."""
    own = folder / "own.safetensors"
    write_checkpoint(own, make_network(), LABELS, {"training_data": "x"})
    folders = [write_towers(folder / kind, kind) for kind in KINDS]
    for name in ("test_resnet", "test_vit"):
        folders.append(folder / name)
        folders[-1].mkdir()
        state = timm.create_model(name, num_classes=3).state_dict()
        save_file(state, folder / name / "model.safetensors")
        sizes = {"input_size": [3, 160, 160], "mean": [0.5] * 3, "crop_pct": 0.9}
        config = {"architecture": name, "label_names": LABELS, "pretrained_cfg": sizes}
        config["model_args"] = {"drop_rate": 0.0}
        (folder / name / "config.json").write_text(json.dumps(config))
    folders.append(write_text_encoder(folder / "bert"))
    return [own, *(file for path in folders for file in path.glob("*.json"))]


def read(path: Path) -> None:
    """Reads a label set, or a model as an export does and runs it once."""
    if path.stem == "pets":
        read_label_set_file(path)
    elif path.parent.name == "bert":
        read_text_encoder(path.parent)
    else:
        network = read_source(path if path.suffix == ".safetensors" else path.parent).network
        spec = network.config.input
        with torch.inference_mode():
            network.backbone(torch.zeros(1, 3, spec.height, spec.width))


def mutate(content: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """Returns content with other bytes or another value; of an archive mostly in a member."""
    if content.startswith(b"PK") and rng.random() < 0.8:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        name, file = rng.choice([*members]), io.BytesIO()
        members[name] = mutate(members[name], [*members.values()], rng)
        with zipfile.ZipFile(file, "w", rng.choice(_COMPRESSIONS)) as archive:
            for name, member in members.items():
                archive.writestr(name, member)
        return file.getvalue()
    values = [match.span() for match in _VALUE.finditer(content)]
    if values and rng.random() < 0.7:
        begin, end = rng.choice(values)
        return content[:begin] + rng.choice(_ABSURD) + content[end:]
    return mutate_bytes(content, others, rng)


def write_mutant(path: Path, good: bytes, others: Sequence[bytes], rng: random.Random) -> None:
    if path.suffix == ".safetensors":
        length = int.from_bytes(good[:8], "little")
        metadata = json.loads(good[8 : 8 + length])["__metadata__"]
        key = rng.choice(sorted(metadata))
        value = mutate(metadata[key].encode(), others, rng).decode(errors="replace")
        path.write_bytes(save(load(good), metadata | {key: value}))
    else:
        path.write_bytes(mutate(good, others, rng))


def try_reading(path: Path, seconds: float) -> str:
    """Returns whether a file was read or refused; raises what is neither."""
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        read(path)
    except (StartError, RequestError) as error:
        line, cause = str(error), repr(error.__context__)
        assert "\n" not in line, line
        assert not re.search(_NO_MEMORY, cause), cause
        return "refused"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return "read"


def try_mutants(paths: list[Path], count: int, seconds: float, rng: random.Random) -> None:
    """Prints the number of each outcome of each file; raises another one, with its mutant."""
    outcomes, contents = Counter[str](), {path: path.read_bytes() for path in paths}
    for path in rng.choices(paths, k=count):
        write_mutant(path, contents[path], [*contents.values()], rng)
        try:
            outcomes[f"{path.name} {try_reading(path, seconds)}"] += 1
        except BaseException as error:
            error.add_note(f"{path.name}: {path.read_bytes()!r:.2000}")
            raise
        path.write_bytes(contents[path])
    for path in paths:
        read(path)
    for outcome, number in sorted(outcomes.items()):
        sys.stdout.write(f"{number} {outcome}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labels", type=int, default=20_000)
    parser.add_argument("--models", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    signal.signal(signal.SIGVTALRM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder:
        label_sets, models = write_label_sets(Path(folder)), write_models(Path(folder))
        limit = psutil.Process().memory_info().data + _MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        try_mutants(label_sets, given.labels, 1, rng)
        try_mutants(models, given.models, 20, rng)


if __name__ == "__main__":
    main()
