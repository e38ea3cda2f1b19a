"""Recognises a checkpoint by its first bytes: a wrong one is refused before torch is imported."""

import re
import zipfile
from pathlib import Path

from models.checkpoints.description import CheckpointError

HUB = "hf-hub:"
"""Before `owner/name`, a repository on the Hugging Face hub."""
_HEAD = 4096
_ZIP = b"PK\x03\x04"
_PICKLE = b"\x80"
_TORCH_MAGIC = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # of torch.save before 1.6
MAX_SAFETENSORS_HEADER = 100_000_000  # bytes, the format's own limit
# Files that describe a folder's model.
_CONFIGS = ("config.json", "open_clip_config.json")
# First bytes of files that users give instead, in lower case, and what they are.
_BYTES = {
    b"version https://git-lfs": "a pointer of Git LFS: run git lfs pull",
    b"<!doctype html": "a web page: download the file itself",
    b"<html": "a web page: download the file itself",
}
_SHARD = re.compile(r"-\d{5}-of-(?!00001)\d{5}\.|\.index\.json$")


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
        raise CheckpointError(
            f"{path.name} is one of several files, or their list: store the weights in one file"
        )
    is_safetensors(path)


def is_safetensors(path: Path) -> bool:
    """Returns False for a file of torch; raises CheckpointError if it is neither."""
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
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= MAX_SAFETENSORS_HEADER:
        return True
    if head.startswith(_ZIP):
        _check_zip(path)
    elif not (head.startswith(_PICKLE) and _TORCH_MAGIC in head):
        kinds = [what for start, what in _BYTES.items() if head.lower().startswith(start)]
        kinds.append("of no known format" if head else "empty")
        raise CheckpointError(
            f"{path.name} is {kinds[0]}; a checkpoint is a safetensors file, or what torch.save "
            "writes (not pickle, ONNX, GGUF, Keras, PaddlePaddle or an archive)"
        )
    return False


def _check_zip(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:  # reads the directory at its end
            inside = {name.rpartition("/")[2] for name in archive.namelist()}
            size = sum(info.file_size for info in archive.infolist())
    except (zipfile.BadZipFile, OSError) as error:
        raise CheckpointError(f"{path.name} is damaged or cut off: its end is missing") from error
    if "constants.pkl" in inside:
        raise CheckpointError(
            f"{path.name} is a TorchScript program: store its weights, with "
            "torch.save(model.state_dict(), FILE)"
        )
    if size > path.stat().st_size:  # torch would unpack 1 MB to 1 GB
        raise CheckpointError(f"{path.name} is compressed: store it as torch.save writes it")
    if "data.pkl" not in inside:
        raise CheckpointError(f"{path.name} is a zip archive that torch.save did not write")
