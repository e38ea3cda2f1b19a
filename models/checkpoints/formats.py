"""Recognises a checkpoint by its first bytes: a wrong one is refused before torch is imported."""

import re
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
# Lists of a model's files; each is in one folder with them.
INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
# Files that describe a folder's model.
_CONFIGS = ("config.json", "open_clip_config.json", *INDICES)
_OTHER_FRAMEWORK = "networks of other frameworks are not read"
# Where they begin, first bytes of files that users give instead, and what they are.
_BYTES = (
    (0, (b"version https://git-lfs",), "a pointer of Git LFS: run git lfs pull"),
    (0, (b"\x89HDF",), f"an HDF5 file, as Keras writes it: {_OTHER_FRAMEWORK}"),
    (0, (b"\x1f\x8b", b"7z\xbc\xaf"), "an archive: unpack it"),
    (257, (b"ustar",), "an archive: unpack it"),
    (0, (b"GGUF",), "a quantised GGUF file: give the safetensors file that it was made from"),
    (0, (b"<!DOCTYPE html", b"<!doctype html", b"<html"), "a web page: download the file itself"),
)
# The same by the end of a file's name, for formats without such bytes.
_SUFFIXES = {
    ".onnx": "an ONNX graph: give the weights in PyTorch that it was made from",
    ".pdparams": f"weights of PaddlePaddle: {_OTHER_FRAMEWORK}",
    ".pb": f"a graph of TensorFlow: {_OTHER_FRAMEWORK}",
    ".index.json": "a list of a model's files: give the folder that has them all",
}
# A file that such a zip archive has, by the end of its name, and what the archive is.
_ARCHIVES = {
    "constants.pkl": "a TorchScript program: store its weights, with torch.save(model.state_dict()"
    ", FILE)",
    "model.weights.h5": f"a model of Keras: {_OTHER_FRAMEWORK}",
}
_SHARD = re.compile(r"-\d{5}-of-(?!00001)\d{5}\.")


def is_on_hub(checkpoint: Path | str) -> bool:
    """Whether this is `hf-hub:owner/name`."""
    return str(checkpoint).startswith(HUB)


def is_repository(checkpoint: Path | str) -> bool:
    """Whether this is on the hub, or a folder that describes its model in the same way."""
    return is_on_hub(checkpoint) or any((Path(checkpoint) / name).is_file() for name in _CONFIGS)


def check_checkpoint(checkpoint: Path | str) -> None:
    """Raises CheckpointError unless this may be a file or a folder of weights, or on the hub."""
    if is_repository(checkpoint):
        return
    path = Path(checkpoint)
    if _SHARD.search(path.name):
        raise CheckpointError(f"{path.name} is one of several files: give the folder that has them")
    is_safetensors(path)


def is_safetensors(path: Path) -> bool:
    """Returns False for a file of torch; raises CheckpointError if it is neither, or is cut off."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except FileNotFoundError as error:
        raise CheckpointError(f"no checkpoint file at {path}") from error
    except IsADirectoryError as error:
        what = "folder without config.json: give the file of weights in it"
        if (path / "manifest.json").exists():
            what = "bundle: give it with --bundle, or serve it as it is"
        raise CheckpointError(f"{path} is a {what}") from error
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
    for end, what in _ARCHIVES.items():
        if any(name.endswith(end) for name in inside):
            raise CheckpointError(f"{path.name} is {what}")
    if "data.pkl" not in inside:
        raise CheckpointError(f"{path.name} is a zip archive that torch.save did not write")


def _recognise(path: Path, head: bytes) -> str:
    kinds = [what for offset, start, what in _BYTES if head.startswith(start, offset)]
    kinds += [what for suffix, what in _SUFFIXES.items() if path.name.endswith(suffix)]
    if kinds:
        return kinds[0]
    if head.startswith(_PICKLE):
        return "a pickle that torch.save did not write"
    return "of no known format" if head else "empty"
