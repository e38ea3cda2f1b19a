"""A run of any task: its log, its state, and its end at a loss that is not a number."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.train.recipe import BaseRecipe
from models.train.run import LossError, Run, RunFolder, Task, make_accelerator
from tests.models.colours import read_log


class ConstantTask(Task[float]):
    """A task whose batches are its losses."""

    def __init__(self, *losses: float) -> None:
        self.losses, self.num_batches = losses, len(losses)
        self.network = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.1)

    def read_batches(self, epoch: int) -> tuple[float, ...]:
        assert epoch >= 0
        return self.losses

    def compute_losses(self, network: nn.Module, batch: float) -> dict[str, Tensor]:
        return {"first": network(torch.zeros(1)).sum() * 0 + batch, "second": torch.tensor(2.0)}

    def measure(self, network: nn.Module) -> dict[str, float]:
        assert not network.training
        return {"figure": 50.0}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_run_ends_with_one_line_when_the_loss_is_not_a_number(value: float, tmp_path: Path) -> None:
    def fit(*losses: float) -> dict[str, float]:
        folder = RunFolder(tmp_path, {})
        return Run(ConstantTask(*losses), BaseRecipe(epochs=1), folder, accelerator).fit()

    accelerator = make_accelerator(cpu=True)
    with pytest.raises(LossError, match=r"^the loss of epoch 1 is (nan|inf): [^\n]+$"):
        fit(1.0, value)
    assert not (tmp_path / "state.pt").exists()
    assert fit(1.0, 2.0) == {"figure": 50.0}
    header, row = (tmp_path / "metrics.csv").read_text().splitlines()
    assert header == "epoch,first,second,figure,lr"
    assert row.startswith("1,1.5,2,50,")


def test_averaged_weights_keep_their_decay_from_the_start_without_warmup(tmp_path: Path) -> None:
    accelerator, task = make_accelerator(cpu=True), ConstantTask(1.0)
    decays = []
    for warmup in (True, False):
        recipe = BaseRecipe(ema_decay=0.9997, ema_warmup=warmup)
        ema = Run(task, recipe, RunFolder(tmp_path, {}), accelerator).ema
        decays.append(ema.get_decay(40 * 1465))  # the last step of COCO's 40 epochs
    assert decays == pytest.approx([0.99934, 0.9997], abs=1e-5)


class _Stopped(Exception):
    pass


def test_run_killed_between_its_row_and_its_state_has_one_row_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> Run[float]:
        accelerator = make_accelerator(cpu=True)
        found = Run(ConstantTask(1.0), BaseRecipe(epochs=3), folder, accelerator)
        if (state := folder.read_state()) is not None:
            found.resume(state)
        return found

    def stop_in_the_second(folder: RunFolder, state: dict[str, Any]) -> None:
        if state["epoch"] == 2:
            raise _Stopped
        real_write(folder, state)

    folder, real_write = RunFolder(tmp_path, {"lr": 0.1}), RunFolder.write_state
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "write_state", stop_in_the_second)
        with pytest.raises(_Stopped):
            run().fit()
    assert [row["epoch"] for row in read_log(tmp_path)] == ["1", "2"]
    resumed = run()
    assert resumed.epoch == 1
    resumed.fit()
    assert [row["epoch"] for row in read_log(tmp_path)] == ["1", "2", "3"]
