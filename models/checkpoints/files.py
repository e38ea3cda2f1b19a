"""Checkpoint files, local or on the Hugging Face hub (`hf-hub:owner/name`), hashed when read."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from huggingface_hub.utils import logging
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from torch import Tensor, nn

from models.checkpoints.description import CheckpointError, Description, State, read_names
from models.checkpoints.formats import HUB, is_on_hub, is_repository, is_safetensors
from models.checkpoints.preparation import PREPROCESS, TAGS, read_preprocess

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
CONFIG = "config.json"

_json_object = TypeAdapter(dict[str, Any])
_MAX_DEPTH = 3  # of dictionaries: the file's, one of its wrappings, `module` in that
_NUMBER = re.compile("[<>=|]?(f4|f8|i8|b1)")  # numpy's codes


class _NumberType:
    """Replaces numpy's `dtype`: a forged state makes that one read and write any memory."""

    def __init__(self, code: str, align: object = False, copy: object = True) -> None:
        if not _NUMBER.fullmatch(code) or align or not copy:
            raise pickle.UnpicklingError("the file has a number that is not supported")
        self.code = code

    def __setstate__(self, state: tuple[object, ...]) -> None:
        if (state[0], *state[2:]) != (3, None, None, None, -1, -1, 0):
            raise pickle.UnpicklingError("the file has a number that is not supported")
        self.code = _NumberType(f"{state[1]}{self.code[-2:]}").code


def _read_number(kind: _NumberType, data: bytes) -> bool | float:
    """Replaces numpy's `scalar`; raises ValueError unless `data` is exactly one number."""
    if type(kind) is not _NumberType:
        raise pickle.UnpicklingError("the file has a number that is not supported")
    number: bool | float = np.frombuffer(data, kind.code).reshape(1)[0].item()
    return number


# Plain data that other projects store with their tensors: the best mAP as a numpy number
# (Query2Label), the command line's arguments (timm). Building these runs no code of the file.
_PLAIN_DATA: list[Any] = [
    argparse.Namespace,
    (_NumberType, "numpy.dtype"),
    *((_read_number, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
]


@dataclass(frozen=True, eq=False)
class CheckpointFile:
    """A file that was read."""

    name: str  # without folders
    sha256: str
    content: Any  # `State` of a safetensors file, else the object that was pickled
    metadata: Mapping[str, str]  # of a safetensors file, else empty
    description: Description  # from the repository on the hub, else empty


def read_file(checkpoint: Path | str) -> CheckpointFile:
    """Reads safetensors, else torch's pickle of tensors and plain data only."""
    description = _read_description(checkpoint)
    path = locate(checkpoint)
    parse = _parse_safetensors if is_safetensors(path) else _unpickle
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read") from error
    metadata, content = parse(path.name, data)
    content = _take_plain(path.name, content, len(data))
    sha256 = hashlib.sha256(data).hexdigest()
    return CheckpointFile(path.name, sha256, content, metadata, description)


def write_file(path: Path, module: nn.Module, metadata: Mapping[str, str]) -> None:
    """Writes a module's tensors as safetensors; replaces the file atomically."""
    # safetensors refuses tensors that share memory, such as those of CoaT's shared layers.
    state = {key: tensor.clone().contiguous() for key, tensor in module.state_dict().items()}
    staging = path.with_suffix(".tmp")
    staging.write_bytes(safetensors.torch.save(state, dict(metadata)))
    staging.replace(path)


def locate(
    checkpoint: Path | str, names: Sequence[str] = WEIGHTS, owner: str | None = None
) -> Path:
    """Returns a local file, in a repository or its folder the first of `names` that it has."""
    if not is_repository(checkpoint):
        return Path(checkpoint)
    for name in names:
        if (path := fetch(checkpoint, name)) is not None:
            return path
    raise CheckpointError(f"{owner or checkpoint} has neither {' nor '.join(names)}")


def _read_description(checkpoint: Path | str) -> Description:
    found = read_json(checkpoint, CONFIG)  # as timm writes it
    preparation = found.get("pretrained_cfg") or {}
    if not isinstance(preparation, dict):
        raise CheckpointError(f"{checkpoint} has a {CONFIG} that is damaged")
    kind, name = found.get("model_type"), found.get("architecture")
    if kind in ("clip", "siglip"):
        raise CheckpointError(
            f"{checkpoint} is a {kind} model without labels: only export reads it"
        )
    name = name if isinstance(name, str) else None
    steps = read_json(checkpoint, PREPROCESS)
    photos = read_preprocess(steps, preparation) if steps else {}
    if photos:
        preparation = {**preparation, "input_size": (3, photos["height"], photos["width"])}
    is_tagger = fetch(checkpoint, TAGS) is not None
    names = read_names(found.get("label_names"))
    return Description(name, names, preparation, photos=photos, is_tagger=is_tagger)


def read_json(checkpoint: Path | str, name: str) -> dict[str, Any]:
    """Returns the object in a file of a folder or a repository, empty without the file."""
    path = fetch(checkpoint, name)
    try:
        return {} if path is None else _json_object.validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise CheckpointError(f"{checkpoint} has a {name} that is damaged") from error


def fetch(checkpoint: Path | str, name: str) -> Path | None:
    """Returns a file of a folder or a repository, None if it has no such file."""
    if not is_on_hub(checkpoint):
        path = Path(checkpoint) / name
        return path if path.is_file() else None
    logging.set_verbosity_error()  # it would log each of its retries
    try:
        return Path(hf_hub_download(str(checkpoint).removeprefix(HUB), name))
    except LocalEntryNotFoundError as error:  # a subclass: there is no network
        raise CheckpointError(f"{checkpoint} cannot be fetched: the hub is out of reach") from error
    except EntryNotFoundError:
        return None
    except Exception as error:  # the library raises the errors of every layer below it
        raise CheckpointError(f"{checkpoint} cannot be fetched") from error


def _parse_safetensors(name: str, data: bytes) -> tuple[Mapping[str, str], State]:
    try:
        state = safetensors.torch.load(data)
    except KeyError as error:  # a type that torch does not have
        raise CheckpointError(f"{name} has tensors of {error.args[0]}: store float32") from error
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"{name} is damaged or not a safetensors file") from error
    # `load` leaves out the metadata. The header is its length, 8 bytes, and then JSON.
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header.get("__metadata__", {}), state


def _unpickle(name: str, data: bytes) -> tuple[Mapping[str, str], object]:
    try:
        with torch.serialization.safe_globals(_PLAIN_DATA):
            return {}, torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{name} is not a file of plain tensors (code in a pickle is refused): store "
            "them alone, with torch.save(model.state_dict(), FILE)"
        ) from error
    except Exception as error:  # torch raises many types for damaged bytes
        raise CheckpointError(f"{name} is damaged or not a torch checkpoint") from error


def _take_plain(name: str, value: Any, size: int, depth: int = _MAX_DEPTH) -> Any:  # noqa: ANN401
    """Checks tensors, and copies dictionaries without the attributes that a pickle may set."""
    if isinstance(value, dict) and depth:
        items = dict.items(value)
        return {key: _take_plain(name, each, size, depth - 1) for key, each in items}
    if isinstance(value, Tensor):
        dense = value.layout is torch.strided and not value.is_quantized
        # A few bytes can be a view of any size, which the network would allocate.
        if not dense or max((value.nbytes, *value.shape)) > size or value.device.type != "cpu":
            raise CheckpointError(
                f"{name} has a tensor that is sparse, quantised or larger than the file: store "
                "dense tensors, with torch.save(model.state_dict(), FILE)"
            )
    return value
