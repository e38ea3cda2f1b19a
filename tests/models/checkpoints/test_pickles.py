"""Objects that training scripts store with their weights, and pickles that call code."""

import collections
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from models.checkpoints.description import CheckpointError
from models.checkpoints.files import read_file
from models.checkpoints.layouts.state import unwrap
from models.checkpoints.pickles import Unread
from tests.models.checkpoints import assert_refused

WEIGHT = torch.ones(2, 3)


class Config:
    def __init__(self) -> None:
        self.rate = 0.1

    def __setstate__(self, state: object) -> None:
        raise AssertionError("code of the file was run")


class Calls:
    def __reduce__(self) -> Any:
        return Path.write_text, (Path("victim"), "hit")


@pytest.mark.parametrize(
    "value", [Path("/data"), np.arange(3), np.float64(1), collections.defaultdict(int), Config()]
)
def test_settings_next_to_weights_are_ignored(value: object, tmp_path: Path) -> None:
    content = {"state_dict": {"a": WEIGHT}, "hyper_parameters": {"x": value, "y": 3}}
    torch.save(content, tmp_path / "a.ckpt")
    loaded = read_file(tmp_path / "a.ckpt").content
    assert loaded["hyper_parameters"]["y"] == 3
    assert isinstance(loaded["hyper_parameters"]["x"], dict | Unread)
    assert loaded["state_dict"]["a"].equal(WEIGHT)


@pytest.mark.parametrize("zipped", [True, False])
def test_pickle_that_calls_code_runs_none(
    zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"a": Calls()}, "a.pth", _use_new_zipfile_serialization=zipped)
    assert_refused("a.pth", "code in a pickle is refused", read_file)
    assert not Path("victim").exists()


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    "content",
    [
        nn.Linear(2, 3),
        {"model": nn.Linear(2, 3), "epoch": 3},
        {"model": {"a": WEIGHT}, "ema": nn.Linear(2, 3)},
    ],
)
def test_pickled_module_is_refused_by_the_name_of_its_class(
    content: object, zipped: bool, tmp_path: Path
) -> None:
    torch.save(content, tmp_path / "a.pth", _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match=r"pickled torch\.nn\.modules\.linear\.Linear"):
        unwrap(read_file(tmp_path / "a.pth").content)


def test_arrays_of_numpy_in_place_of_tensors_are_refused(tmp_path: Path) -> None:
    torch.save({"a": np.ones((2, 3)), "b": np.ones(3)}, tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match=r"a pickled numpy.*store only the weights"):
        unwrap(read_file(tmp_path / "a.pth").content)


def test_pickle_of_thousands_of_classes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [type(f"K{i}", (), {"__module__": __name__}) for i in range(1001)]
    for kind in kinds:
        monkeypatch.setitem(globals(), kind.__name__, kind)
    torch.save({"a": kinds}, tmp_path / "a.pth")
    assert_refused(tmp_path / "a.pth", "code in a pickle is refused", read_file)
