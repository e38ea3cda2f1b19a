"""Reads torch's pickles without running their code: only tensors and plain data are built.

Objects of other classes, such as a training script's settings, become `Unread`.
"""

import argparse
import io
import pickle
import re
from collections import OrderedDict
from typing import Any

import torch

from models.checkpoints.description import CheckpointError

_STORE = "store only the weights, with torch.save(model.state_dict(), FILE)"
_DICTIONARY = re.compile(r"(?i)(dict|munch)$")  # AttributeDict, EasyDict, defaultdict and others
_MAX_CLASSES = 1000  # a class takes a kilobyte, and torch searches all for each object
# In torch's errors, for a pickle whose classes cannot be replaced.
_CLASS = re.compile(r"GLOBAL ([\w.]+)|<class '([\w.]+)'>")


class Unread:
    """Replaces an object of an unknown class and ignores its content."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass

    @property
    def kind(self) -> str:
        """The name of the class in the file."""
        return f"{type(self).__module__}.{type(self).__qualname__}"


class _Dictionary:
    """Replaces subclasses of `dict`: torch sets the items of its own classes only."""

    def __new__(cls, *_: object) -> OrderedDict[object, object]:  # type: ignore[misc]
        return OrderedDict()


def _replace(path: str) -> Any:  # noqa: ANN401
    module, _, name = path.rpartition(".")
    if _DICTIONARY.search(name):
        return _Dictionary
    return type(name, (Unread,), {"__module__": module})


# Plain data that other projects store with their tensors, also in files of torch.save before 1.6,
# whose classes are not listed: the command line's arguments (timm), the best mAP as a number of
# numpy (Query2Label). Building these runs no code of the file.
_PLAIN_DATA: list[Any] = [
    argparse.Namespace,
    *(
        (_replace(path), path)
        for path in ("numpy.dtype", *(f"numpy.{c}.multiarray.scalar" for c in ("core", "_core")))
    ),
]


def unpickle(name: str, data: bytes) -> object:
    """Returns the object in a file of torch.save; raises CheckpointError."""
    try:
        with torch.serialization.safe_globals(_PLAIN_DATA):
            unknown = _find_unknown(data)
            with torch.serialization.safe_globals([(_replace(path), path) for path in unknown]):
                content: object = torch.load(
                    io.BytesIO(data), map_location="cpu", weights_only=True
                )
    except pickle.UnpicklingError as error:
        match = _CLASS.search(str(error))
        kind = f"a pickled {match[1] or match[2]}" if match else "more than tensors and plain data"
        raise CheckpointError(
            f"{name} has {kind} (code in a pickle is refused): {_STORE}"
        ) from error
    except Exception as error:  # torch raises many types for damaged bytes
        raise CheckpointError(f"{name} is damaged or not a torch checkpoint") from error
    if isinstance(content, Unread):
        raise CheckpointError(f"{name} is a whole pickled {content.kind}: {_STORE}")
    return content


def _find_unknown(data: bytes) -> list[str]:
    try:
        classes = torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(data))
    except ValueError:  # torch.save before 1.6 wrote no zip archive: its classes are refused
        return []
    if len(classes) > _MAX_CLASSES:
        raise pickle.UnpicklingError("the file has too many classes")
    return classes
