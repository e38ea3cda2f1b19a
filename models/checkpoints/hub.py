"""Checkpoints on the Hugging Face hub: `hf-hub:owner/name` becomes a file of this machine.

In: what a user gives for a checkpoint. Out: a path, downloaded at the first use and kept by
the hub's own cache. Next: `checkpoints.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from huggingface_hub.utils import logging

from models.checkpoints.layouts import CheckpointError, Description
from models.checkpoints.layouts.state import NOTHING_BESIDE, read_names

_PREFIX = "hf-hub:"
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_CONFIG = "config.json"


def locate(checkpoint: Path | str) -> Path:
    """Returns the file of a checkpoint: itself, or what `hf-hub:owner/name` stands for.

    Raises:
        CheckpointError: the hub or the repository cannot be reached, or holds no weights.
    """
    if not _is_on_hub(checkpoint):
        return Path(checkpoint)
    for name in _WEIGHTS:
        if (path := _fetch(checkpoint, name)) is not None:
            return path
    raise CheckpointError(f"{checkpoint} holds neither {' nor '.join(_WEIGHTS)}")


def read_description(checkpoint: Path | str) -> Description:
    """Returns what a repository on the hub says of its weights, as timm writes it there.

    Raises:
        CheckpointError: the hub or the repository cannot be reached, or its words are damaged.
    """
    path = _fetch(checkpoint, _CONFIG) if _is_on_hub(checkpoint) else None
    if path is None:
        return NOTHING_BESIDE
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        name, prepared = told.get("architecture"), dict(told.get("pretrained_cfg") or {})
    except (ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{checkpoint} has a {_CONFIG} that is damaged") from error
    return Description(
        name if isinstance(name, str) else None, read_names(told.get("label_names")), prepared
    )


def _is_on_hub(checkpoint: Path | str) -> bool:
    return str(checkpoint).startswith(_PREFIX)


def _fetch(checkpoint: Path | str, name: str) -> Path | None:
    """Returns a file of the repository, or None where it has none of this name."""
    repository = str(checkpoint).removeprefix(_PREFIX)
    logging.set_verbosity_error()  # it would tell each of its retries on a line
    try:
        return Path(hf_hub_download(repository, name))
    except LocalEntryNotFoundError as error:  # an EntryNotFoundError, but for want of a network
        raise CheckpointError(f"{checkpoint} cannot be fetched: the hub is out of reach") from error
    except EntryNotFoundError:
        return None
    except Exception as error:  # the library lets those of every layer below it through
        raise CheckpointError(f"{checkpoint} cannot be fetched") from error
