"""Mutates models' descriptions: `python -m tests.faults.forged_configs --mutants 5000 --seed 0`.

The reader of an export gets 1.1 GB and 20 s for each mutant: it returns a model or raises one line.
Prints the count of each outcome; exits with 1 after another one, or if a good model fails at last.
"""

import argparse
import json
import random
import re
import resource
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import load, save, save_file

from export.sources.trained import read_source
from models.checkpoints.checkpoint import write_checkpoint
from models.commands import RequestError
from models.text import read_text_encoder
from tests.export.tiny_network import LABELS, make_network
from tests.models.tiny_text import write_text_encoder
from tests.models.tiny_towers import KINDS, write_towers

_BYTES, _SECONDS = 2 << 30, 20  # torch and transformers take 0.9 GB
_DEEP: Any = json.loads("[" * 500 + "]" * 500)
_VALUES: tuple[Any, ...] = (0, -1, 2, 2**31, 2**63, 10**30, 1e308, float("nan"), "x", "", None,
    True, [], [2**31] * 3, [[1]], {}, {"a": 2**40}, _DEEP)  # fmt: skip


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
    """Reads a file's model as an export does, and runs it once."""
    if path.parent.name == "bert":
        read_text_encoder(path.parent)
        return
    network = read_source(path if path.suffix == ".safetensors" else path.parent).network
    with torch.inference_mode():
        network.backbone(torch.zeros(1, 3, network.config.input.height, network.config.input.width))


def mutate(rng: random.Random, text: str) -> str:
    """Replaces, drops or doubles a value of a JSON document."""
    document, places = json.loads(text), list[tuple[Any, Any]]()
    branches = [document]
    for branch in branches:
        keys = list(branch) if isinstance(branch, dict) else list(range(len(branch)))
        places += [(branch, key) for key in rng.sample(keys, min(len(keys), 20))]  # vocabularies
        branches += [branch[key] for key in keys if isinstance(branch[key], dict | list)]
    (container, key), value, action = rng.choice(places), rng.choice(_VALUES), rng.random()
    if action < 0.8:
        container[key] = value
    elif action < 0.9:
        del container[key]
    text = json.dumps(document)
    names = list(re.finditer(r'"\w+": ', text)) if action >= 0.9 else []
    for name in rng.sample(names, min(len(names), 1)):
        text = f"{text[: name.end()]}{json.dumps(value)}, {text[name.start() :]}"
    return text


def try_mutant(rng: random.Random, path: Path) -> str:
    """Mutates one file, reads the model and puts the file back; returns the outcome."""
    good = path.read_bytes()
    if path.suffix == ".safetensors":
        metadata = json.loads(good[8 : 8 + int.from_bytes(good[:8], "little")])["__metadata__"]
        key = rng.choice(sorted(metadata))
        path.write_bytes(save(load(good), metadata | {key: mutate(rng, metadata[key])}))
    else:
        path.write_text(mutate(rng, path.read_text()))
    signal.alarm(_SECONDS)
    try:
        read(path)
    except RequestError as error:
        return "refused" if "\n" not in str(error) else f"lines: {error}"
    except Exception as error:  # what this looks for
        return f"{type(error).__name__}: {error} {path.parent.name}/{path.name}"
    finally:
        signal.alarm(0)
        path.write_bytes(good)
    return "read"


def stop(*_: object) -> None:
    """Ends a mutant that takes too long."""
    raise TimeoutError(f"after {_SECONDS} s")


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng, outcomes = random.Random(given.seed), Counter[str]()
    signal.signal(signal.SIGALRM, stop)
    with tempfile.TemporaryDirectory() as folder:
        files = write_models(Path(folder))
        resource.setrlimit(resource.RLIMIT_DATA, (_BYTES, _BYTES))
        for _ in range(given.mutants):
            outcomes[try_mutant(rng, rng.choice(files))] += 1
        for path in files:
            read(path)
    for outcome, count in outcomes.most_common():
        sys.stdout.write(f"{count} {outcome}\n")
    return int(not outcomes.keys() <= {"read", "refused"})


if __name__ == "__main__":
    sys.exit(main())
