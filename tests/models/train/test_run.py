"""A run of any task: its log, its state, its rates, and its end at a loss that is not a number."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.commands import RequestError
from models.train.recipe import BaseRecipe
from models.train.run import Run, RunFolder, Task, group_parameters, one_cycle
from tests.models.colours import Stopped, read_log


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


def make_run(folder: Path, *losses: float, **choices: Any) -> Run[float]:
    """Begins or resumes a run."""
    run_folder, device = RunFolder(folder, {"lr": 0.1}), torch.device("cpu")
    return Run(ConstantTask(*losses), BaseRecipe(**choices), run_folder, device)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_run_ends_with_one_line_when_the_loss_is_not_a_number(value: float, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"^the loss of epoch 1 is (nan|inf): [^\n]+$"):
        make_run(tmp_path, 1.0, value, epochs=1).fit()
    assert not (tmp_path / "state.pt").exists()
    assert make_run(tmp_path, 1.0, 2.0, epochs=1).fit() == {"figure": 50.0}
    header, row = (tmp_path / "metrics.csv").read_text().splitlines()
    assert header == "epoch,first,second,figure,lr"
    assert row.startswith("1,1.5,2,50,")


def test_run_killed_between_its_row_and_its_state_has_one_row_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write = RunFolder.write_state

    def stop_in_the_second(folder: RunFolder, state: dict[str, Any]) -> None:
        if state["epoch"] == 2:
            raise Stopped
        real_write(folder, state)

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "write_state", stop_in_the_second)
        with pytest.raises(Stopped):
            make_run(tmp_path, 1.0, epochs=3).fit()
    assert [row["epoch"] for row in read_log(tmp_path)] == ["1", "2"]
    resumed = make_run(tmp_path, 1.0, epochs=3)
    assert resumed.epoch == 1
    resumed.fit()
    assert [row["epoch"] for row in read_log(tmp_path)] == ["1", "2", "3"]


@pytest.mark.parametrize(("steps", "warmup"), [(5, 0.2), (1, 0.5), (10, 0.2), (4, 0.2)])
def test_learning_rate_reaches_its_peak_for_any_number_of_steps(steps: int, warmup: float) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.3)
    schedule = one_cycle(optimizer, steps, warmup)
    rates = []
    for _ in range(steps):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    if warmup * steps >= 2:
        assert max(rates) == pytest.approx(0.3)
    assert max(rates) == rates[max(0, round(warmup * steps) - 1)]


def test_vectors_do_not_decay() -> None:
    rates = [(nn.Parameter(torch.zeros(*shape)), 0.1) for shape in ((2,), (2, 2))]
    assert [group["weight_decay"] for group in group_parameters(rates, 0.5)] == [0.0, 0.5]
