"""Recognises a checkpoint by its first bytes: a wrong one is refused before torch is imported.

Importing torch and timm takes seconds.
"""

from __future__ import annotations

import codecs
import zipfile
from pathlib import Path

from safetensors import SafetensorError, safe_open

from models.checkpoints.description import CheckpointError

HUB = "hf-hub:"
"""Before `owner/name`, a repository on the Hugging Face hub."""
_HEAD = 4096
_ZIP = b"PK\x03\x04"
_PICKLE = b"\x80"
_TORCH_MAGIC = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # of torch.save before 1.6
_MAX_SAFETENSORS_HEADER = 100_000_000  # bytes, the format's own limit
# First bytes of files that users give instead, and what they are.
_OTHERS = {
    b"version https://git-lfs": "a pointer of Git LFS, without the weights: run git lfs pull",
    b"\x89HDF": "an HDF5 file, as Keras writes it",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"\x1f\x8b": "a gzip archive: unpack it",
}


def is_on_hub(checkpoint: Path | str) -> bool:
    """Whether this is `hf-hub:owner/name`."""
    return str(checkpoint).startswith(HUB)


def is_repository(checkpoint: Path | str) -> bool:
    """Whether this is on the hub, or a folder that describes its model in the same way."""
    configs = ("config.json", "open_clip_config.json")
    return is_on_hub(checkpoint) or any((Path(checkpoint) / name).is_file() for name in configs)


def check_checkpoint(checkpoint: Path | str) -> None:
    """Raises CheckpointError unless this may be a file or a folder of weights, or on the hub."""
    if not is_repository(checkpoint):
        is_safetensors(Path(checkpoint))


def is_safetensors(path: Path) -> bool:
    """Returns whether a file is safetensors; False if it is torch's.

    Raises CheckpointError if it is neither, or is cut off. Later parts of its content may still be
    damaged.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except FileNotFoundError as error:
        raise CheckpointError(f"no checkpoint file at {path}") from error
    except IsADirectoryError as error:
        kind = "folder without config.json: give the file of weights in it"
        if (path / "manifest.json").is_file():
            kind = "bundle: give it with --bundle, or serve it as it is"
        raise CheckpointError(f"{path} is a {kind}") from error
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error.strerror}") from error
    # 8 bytes of text would be a larger number.
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= _MAX_SAFETENSORS_HEADER:
        _check_safetensors(path)
        return True
    if head.startswith(_ZIP):
        _check_zip(path)
    elif not (head.startswith(_PICKLE) and _TORCH_MAGIC in head):
        raise CheckpointError(
            f"{path.name} is {_recognise(path, head)}; a checkpoint is a safetensors file, or what "
            "torch.save writes"
        )
    return False


def _check_safetensors(path: Path) -> None:
    try:
        with safe_open(path, "numpy"):  # compares the header with the file's size
            pass
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path.name} is a safetensors file that is damaged or cut off"
        ) from error


def _check_zip(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:  # reads the directory at its end
            inside = {name.rpartition("/")[2] for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError) as error:
        raise CheckpointError(f"{path.name} is damaged or cut off: its end is missing") from error
    if "data.pkl" not in inside:
        raise CheckpointError(f"{path.name} is a zip archive that torch.save did not write")
    if "constants.pkl" in inside:
        raise CheckpointError(
            f"{path.name} is a TorchScript program: store its weights, with "
            "torch.save(model.state_dict(), FILE)"
        )


def _recognise(path: Path, head: bytes) -> str:
    for start, what in _OTHERS.items():
        if head.startswith(start):
            return what
    if path.suffix == ".onnx":
        return "an ONNX graph: give the weights that it was made from"
    if head.startswith(_PICKLE):
        return "a pickle that torch.save did not write"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # may end within a character
    except UnicodeDecodeError:
        return "of no known format"
    if not head:
        return "empty"
    return "of no known format" if b"\0" in head else "a text file"
