"""The files of two published towers, in a folder or on the hub: found, measured, then read."""

import hashlib
import json
import math
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, takewhile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from huggingface_hub import constants, metadata_load
from huggingface_hub.file_download import repo_folder_name

from export import ExportError
from export.towers.known import LOGITS, PINS, Logits
from models.checkpoints.description import CheckpointError
from models.checkpoints.formats import HUB, MAX_SAFETENSORS_HEADER, is_on_hub
from models.checkpoints.hub import CONFIG, Remote, ask, fetch, fetch_needed, read_range
from models.commands import RequestError
from service.bundle.card import Precision
from service.engine.sessions import first_line

PREPARATION, TOKENIZER = "preprocessor_config.json", "tokenizer.json"
_OPTIONAL = (CONFIG, "tokenizer_config.json", "special_tokens_map.json")
_WEIGHTS = "model.safetensors"
# Ends of the names of a tower's files, and what their products are computed in; best first.
_ENDS: Mapping[str, Precision] = {
    **{"": "fp32", "_quantized": "int8", "_int8": "int8", "_uint8": "int8", "_fp16": "fp16"},
    **{"_q4": "fp32", "_bnb4": "fp32", "_q4f16": "fp16"},
}
_TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<f4"}  # of safetensors


class Tower(NamedTuple):
    """A graph of a repository; `data` are files of weights beside it."""

    name: str
    precision: Precision
    data: tuple[str, ...]


@dataclass
class Repository:
    """A folder, or `hf-hub:owner/name`, with graphs in `onnx/` as the hub's repositories have.

    Methods raise CheckpointError if files are missing or the hub does not answer, and ExportError
    for a file that is not the pinned one.
    """

    place: str
    remotes: dict[str, Remote] = field(default_factory=dict)  # all files that were found, by name
    hashes: dict[str, str] = field(default_factory=dict)  # their SHA-256, after `download`
    home: Path = Path()  # the folder that has them then; the hub's cache names it by the commit

    def find_towers(self, vision: Precision, text: Precision) -> tuple[Tower, Tower]:
        """Finds of each tower the wanted variant, else the best that is there, and other files.

        Downloads nothing.
        """
        towers = self._find_tower("vision", vision), self._find_tower("text", text)
        for name in (PREPARATION, TOKENIZER, *_OPTIONAL):
            if not self.has(name) and name not in _OPTIONAL:
                fetch_needed(self.place, name)  # raises
        return towers

    def _find_tower(self, tower: str, wanted: Precision) -> Tower:
        ends = sorted(_ENDS, key=lambda end: _ENDS[end] != wanted)
        names = {f"onnx/{tower}_model{end}.onnx": _ENDS[end] for end in ends}
        found = next(filter(self.has, names), None)
        name = found or fetch_needed(self.place, *names).name  # raises
        data = (f"{name}_data{f'_{i}' if i else ''}" for i in count())
        return Tower(name, names[name], tuple(takewhile(self.has, data)))

    def has(self, name: str) -> bool:
        """Whether there is a file, then one of `remotes`; with HF_HUB_OFFLINE in the cache."""
        offline = constants.HF_HUB_OFFLINE and not fetch(self.place, name)
        remote = None if offline else ask(self.place, name)
        if remote is not None:
            self._check_pin(name, remote.etag)
            self.remotes[name] = remote
        return remote is not None

    def _check_pin(self, name: str, digest: str) -> None:
        pin = PINS.get((self.place, Path(name).name))
        if len(digest) == 64 and pin not in (None, digest):
            raise ExportError(
                f"{name} of {self.place} is not the file that this version knows (sha256 "
                f"{digest:.12}..., not {pin:.12}...): for another one download the repository, and "
                "give --from FOLDER"
            )

    def download(self) -> None:
        """Downloads what is missing."""
        folders = set()
        for name in self.remotes:
            path = fetch_needed(self.place, name)
            with path.open("rb") as file:
                self.hashes[name] = hashlib.file_digest(file, "sha256").hexdigest()
            self._check_pin(name, self.hashes[name])
            folders.add(path.parents[name.count("/")])
        if len(folders) > 1:
            raise ExportError(f"{self.place} has changed meanwhile: repeat the command")
        (self.home,) = folders

    @contextmanager
    def open_graph(self, tower: Tower) -> Iterator[Path]:
        """Gives a graph with its weights beside it; errors of its use become ExportErrors."""
        paths = [self.home / name for name in (tower.name, *tower.data)]
        with ExitStack() as stack:
            if is_on_hub(self.place) and tower.data:  # weights may be no links, as in the cache
                copies = tempfile.TemporaryDirectory(dir=constants.HF_HUB_CACHE)
                folder = Path(stack.enter_context(copies))
                paths = [Path(shutil.copyfile(path, folder / path.name)) for path in paths]
            try:
                yield paths[0]
            except (CheckpointError, OSError):
                raise
            except Exception as error:  # ONNX Runtime's have no common base, nor protobuf's
                raise ExportError(f"{tower.name} cannot be used: {first_line(error)}") from error


def read_logits(
    place: str, origin: str | None, *, biased: bool, scale: float | None, bias: float | None
) -> Logits:
    """Returns the given numbers, else those of the weights beside the graphs, else known ones.

    Else reads them from the weights that a hub's graphs were made from, `origin`, without a
    download. Raises ExportError if they are nowhere.
    """
    if scale is not None and (bias is not None or not biased):
        return Logits(scale, bias or 0.0)
    if origin is None and is_on_hub(place):
        origin = _find_origin(place)
    names = [Path(each).name.removesuffix("-ONNX") for each in (place, origin) if each]
    reason = f"scale and bias of the logits are not in {place}"
    try:
        found = _read_numbers(place, biased) or next(filter(None, map(LOGITS.get, names)), None)
        if found is None and origin is not None and is_on_hub(place):
            found = _read_numbers(HUB + origin, biased)
    except RequestError as error:
        found, reason = None, str(error)
    if found is None:
        raise ExportError(
            f"{reason}; give --logit-scale (the factor: exp of the checkpoint's logit_scale) and, "
            "for SigLIP, --logit-bias"
        )
    return Logits(found.scale if scale is None else scale, found.bias if bias is None else bias)


def _find_origin(place: str) -> str | None:
    readme = fetch(place, "README.md")
    with suppress(Exception):  # YAML of a stranger
        base = (metadata_load(readme) or {}).get("base_model") if readme else None
        base = str(base[0] if isinstance(base, list) else base)
        return base if re.fullmatch(r"[\w.-]+/[\w.-]+", base) else None
    return None


def _read_numbers(place: str, biased: bool) -> Logits | None:
    """Keeps what it reads from the hub, for HF_HUB_OFFLINE."""
    kept = None
    if is_on_hub(place):
        folder = repo_folder_name(repo_id=place.removeprefix(HUB), repo_type="model")
        kept = Path(constants.HF_HUB_CACHE, folder, "logits.json")
        if constants.HF_HUB_OFFLINE:
            return Logits(*json.loads(kept.read_bytes())) if kept.is_file() else None
    if ask(place, _WEIGHTS) is None:
        return None

    def read_number(name: str) -> float:
        tensor = header[name]
        start, end = tensor["data_offsets"]
        if not 0 <= start < end <= start + 8:
            raise ValueError
        half = bytes(2) if tensor["dtype"] == "BF16" else b""  # the upper half of float32
        content = half + read_range(place, _WEIGHTS, 8 + size + start, end - start)
        return float(np.frombuffer(content, _TYPES[tensor["dtype"]]).item())

    try:
        size = int.from_bytes(read_range(place, _WEIGHTS, 0, 8), "little")
        usual = size if size <= MAX_SAFETENSORS_HEADER else 0
        header = json.loads(read_range(place, _WEIGHTS, 8, usual))
        scale = math.exp(read_number("logit_scale"))
        found = Logits(scale, read_number("logit_bias") if biased else 0.0)
    except (LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise ExportError(f"{place}: {_WEIGHTS} has no logit_scale or logit_bias") from error
    if kept:
        with suppress(OSError):  # a cache for reading only
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(found))
    return found
