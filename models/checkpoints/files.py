"""Checkpoint files, local or on the hub, hashed when read."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from torch import Tensor, nn

from models.checkpoints.description import CheckpointError, Description, State, read_names
from models.checkpoints.formats import check_checkpoint, is_repository, is_safetensors
from models.checkpoints.hub import CONFIG, fetch, fetch_needed, read_json
from models.checkpoints.pickles import unpickle
from models.checkpoints.preparation import PREPROCESS, TAGS, read_preprocess
from models.config import ModelArgument

NETWORK = "config"
"""The key of the configuration in the metadata of our own files."""
WEIGHTS = ("model.safetensors", "pytorch_model.bin")

_model_args = TypeAdapter(dict[str, ModelArgument | None])
# Of timm's arguments: what the tensors and the preparation of photos show.
_READ_ELSEWHERE = {"num_classes", "in_chans", "img_size"}
_MAX_SHARED = 4  # sum of all tensors over the file's size: some share memory
_MAX_DEPTH = 3  # of dictionaries: the file's, one of its wrappings, `module` in that


@dataclass(frozen=True, eq=False)
class CheckpointFile:
    """A file that was read."""

    name: str  # without folders
    sha256: str
    content: Any  # `State` of a safetensors file, else the object that was pickled
    metadata: Mapping[str, str]  # of a safetensors file, else empty
    description: Description  # from the repository, or next to the file


def read_file(checkpoint: Path | str) -> CheckpointFile:
    """Reads safetensors, else torch's pickle of tensors and plain data only."""
    description = _read_description(checkpoint)
    return replace(read_weights(checkpoint), description=description)


def read_weights(checkpoint: Path | str, names: Sequence[str] = WEIGHTS) -> CheckpointFile:
    """Reads a local file, in a repository or its folder the first of `names` that it has."""
    path = Path(checkpoint)
    if is_repository(checkpoint):
        path = fetch_needed(checkpoint, *names)
    else:
        check_checkpoint(checkpoint)
    is_plain = is_safetensors(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read") from error
    metadata: Mapping[str, str] = {}
    if is_plain:
        content, metadata = _parse_safetensors(path.name, data)
    else:
        content = _take_plain(path.name, unpickle(path.name, data), len(data))
    digest = hashlib.sha256(data).hexdigest()
    return CheckpointFile(path.name, digest, content, metadata, Description())


def write_file(path: Path, module: nn.Module, metadata: Mapping[str, str]) -> None:
    """Writes a module's tensors as safetensors; replaces the file atomically."""
    # safetensors refuses tensors that share memory, such as those of CoaT's shared layers.
    state = {key: tensor.clone().contiguous() for key, tensor in module.state_dict().items()}
    staging = path.with_suffix(".tmp")
    staging.write_bytes(safetensors.torch.save(state, dict(metadata)))
    staging.replace(path)


def _read_description(checkpoint: Path | str) -> Description:
    """Reads the `config.json` of timm; older ones have the preparation of photos at the top."""
    config = read_json(checkpoint, CONFIG)
    name = config.get("architecture")
    preparation = config.get("pretrained_cfg", config if name else None) or {}
    try:
        given = _model_args.validate_python(config.get("model_args") or {})
    except ValidationError as error:
        raise CheckpointError(
            f"{checkpoint} has a {CONFIG} whose model_args are not text, numbers or lists of them: "
            f"{'.'.join(map(str, error.errors()[0]['loc'][:1]))}"
        ) from error
    arguments = {key: value for key, value in given.items() if value is not None}
    if not isinstance(preparation, dict):
        raise CheckpointError(f"{checkpoint} has a {CONFIG} that is damaged")
    if (kind := config.get("model_type")) in ("clip", "siglip"):
        raise CheckpointError(
            f"{checkpoint} is a {kind} model without labels: only export reads it"
        )
    if arguments.get("in_chans", 3) != 3:
        raise CheckpointError(f"{checkpoint} takes {arguments['in_chans']} channels: must be 3")
    size = arguments.get("img_size")
    if size is not None:  # the model is bound to it
        sides = size if isinstance(size, tuple) else (size, size)
        preparation = {**preparation, "input_size": (3, *sides), "fixed_input_size": True}
    arguments = {k: v for k, v in arguments.items() if k not in _READ_ELSEWHERE}
    steps = read_json(checkpoint, PREPROCESS)
    photos = read_preprocess(steps) if steps else None
    if photos is not None and not preparation.get("fixed_input_size"):
        preparation = {**preparation, "input_size": (3, photos.height, photos.width)}
    return Description(
        name if isinstance(name, str) else None,
        read_names(config.get("label_names") or config.get("labels") or config.get("tags")),
        preparation,
        arguments,
        photos=photos,
        is_tagger=fetch(checkpoint, TAGS) is not None,
    )


def _parse_safetensors(name: str, data: bytes) -> tuple[State, Mapping[str, str]]:
    try:
        state = safetensors.torch.load(data)
    except KeyError as error:  # a type that torch does not have
        raise CheckpointError(f"{name} has tensors of {error.args[0]}: store float32") from error
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"{name} is damaged or not a safetensors file") from error
    # `load` leaves out the metadata. The header is its length, 8 bytes, and then JSON.
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return state, header.get("__metadata__", {})


def _take_plain(name: str, content: Any, size: int) -> Any:  # noqa: ANN401
    """Checks tensors, and copies dictionaries without the attributes that a pickle may set."""
    left = _MAX_SHARED * size

    def take(value: Any, depth: int) -> Any:  # noqa: ANN401
        nonlocal left
        left -= 1  # one dictionary may be in a million places
        odd = False
        if isinstance(value, Tensor):
            dense = value.layout is torch.strided and not value.is_quantized
            # A few bytes can be views of any size, which the network would allocate.
            odd = not dense or max((value.nbytes, *value.shape)) > size or not value.is_cpu
            left -= 0 if odd else value.nbytes
        if odd or left < 0:
            raise CheckpointError(
                f"{name} has a tensor that is sparse, quantised or larger than the file: store "
                "dense tensors, with torch.save(model.state_dict(), FILE)"
            )
        if isinstance(value, dict) and depth:
            return {key: take(item, depth - 1) for key, item in dict.items(value)}
        return value

    return take(content, _MAX_DEPTH)
