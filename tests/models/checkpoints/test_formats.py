"""Files and folders that users give as checkpoints."""

import pickle
import re
import zipfile
from pathlib import Path

import pytest
import torch

from models.checkpoints.checkpoint import load_checkpoint, write_checkpoint
from models.checkpoints.description import CheckpointError
from models.checkpoints.formats import check_checkpoint
from tests.export.tiny_network import LABELS, make_network
from tests.models.checkpoints import assert_refused


@pytest.fixture
def good(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "good.safetensors", make_network(), LABELS, {})
    return tmp_path / "good.safetensors"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("empty.pth", b"", "is empty; a checkpoint is a safetensors file, or what torch.save"),
        ("junk.pth", bytes(range(256)), "is of no known format; a checkpoint is"),
        ("pointer.safetensors", b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
        ("plain.pkl", pickle.dumps({"w": 1}), "what torch.save writes (not pickle, ONNX,"),
        ("net.pth", b"<!DOCTYPE html><html>", "is a web page: download the file itself"),
        ("model.safetensors.index.json", b"{}", "or their list: store the weights"),
        ("model-00001-of-00002.safetensors", b"", "is one of several files, or their list"),
        ("junk.zip", b"PK\x03\x04junk", "is damaged or cut off: its end is missing"),
    ],
)
def test_file_that_is_no_checkpoint_is_refused_as_what_it_is(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    (tmp_path / name).write_bytes(content)
    for refuse in (check_checkpoint, load_checkpoint):
        with pytest.raises(CheckpointError, match=rf"^{name} [^\n]*{re.escape(reason)}[^\n]*\Z"):
            refuse(tmp_path / name)


def test_file_that_is_cut_off_is_refused(good: Path, tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(99)}, tmp_path / "whole.pth")
    for whole in (good, tmp_path / "whole.pth"):
        for length in (1, 99, whole.stat().st_size - 1):
            cut = tmp_path / f"cut{whole.suffix}"
            cut.write_bytes(whole.read_bytes()[:length])
            reason = "is damaged or " if length > 1 else r"is .*; a checkpoint is"
            assert_refused(cut, reason)
        check_checkpoint(whole)


@pytest.mark.parametrize(
    ("inside", "reason"),
    [
        (("script/data.pkl", "script/constants.pkl"), "a TorchScript program: store its weights"),
        (("readme.txt",), "a zip archive that torch.save did not write"),
    ],
)
def test_other_archives_than_torchs_are_refused(
    inside: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "other.pth", "w") as archive:
        for part in inside:
            archive.writestr(part, "")
    assert_refused(tmp_path / "other.pth", f"^other.pth is {reason}", check_checkpoint)


def test_safetensors_are_read_under_any_suffix(good: Path, tmp_path: Path) -> None:
    assert load_checkpoint(good.rename(tmp_path / "model.bin"))


def test_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    assert_refused(tmp_path, r"is a folder without config\.json: give the file", check_checkpoint)
    (tmp_path / "manifest.json").write_text("{}")
    assert_refused(tmp_path, "is a bundle: give it with --bundle, or serve it")
    assert_refused(tmp_path / "gone.pth", "no checkpoint file at ", check_checkpoint)
    check_checkpoint("hf-hub:someone/model")
