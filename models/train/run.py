"""One training run of any task: epochs, averaged weights, `metrics.csv`, and a state to resume."""

import csv
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch
from timm.utils import ModelEmaV3, random_seed
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR
from tqdm import tqdm

from models.commands import RequestError
from models.train.recipe import BaseRecipe

BatchT = TypeVar("BatchT")


class Task(ABC, Generic[BatchT]):
    """A network to train, its batches and its losses."""

    network: nn.Module  # trained in place, on its device
    optimizer: Optimizer  # over its parameters; the `lr` of a group is its peak
    num_batches: int  # in an epoch

    @abstractmethod
    def read_batches(self, epoch: int) -> Iterable[BatchT]:
        """Yields the batches of an epoch, counted from 0."""

    @abstractmethod
    def compute_losses(self, network: nn.Module, batch: BatchT) -> dict[str, Tensor]:
        """Returns named losses, whose sum is trained."""

    @abstractmethod
    def measure(self, network: nn.Module) -> dict[str, float]:
        """Returns named figures of a network on validation, percent."""


class RunFolder:
    """The folder of a run: its log and its state.

    Raises RequestError if `identity`, plain data, is not that of `state.pt`, or this is damaged.
    """

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path, self.identity = path, identity
        self.state = self._read_state()  # None for a new run

    def log(self, rows: Sequence[Mapping[str, str]]) -> None:
        """Writes `metrics.csv`, atomically: a row an epoch, with the columns of the last one."""
        staging = self.path / "metrics.tmp"
        with staging.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[-1].keys(), restval="", extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        staging.replace(self.path / "metrics.csv")

    def write_state(self, state: dict[str, Any]) -> None:
        """Writes `state.pt`, atomically."""
        staging = self.path / "state.tmp"
        torch.save({"identity": self.identity, **state}, staging)
        staging.replace(self.path / "state.pt")

    def _read_state(self) -> dict[str, Any] | None:
        path = self.path / "state.pt"
        if not path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            begun, *_ = dict(state["identity"]), state["network"], state["rows"]
        except Exception as error:  # torch.load raises many types for damaged bytes
            raise RequestError(f"{path} is damaged or too old: give another --out") from error
        for field in self.identity | begun:
            given, wanted = (reprlib.repr(facts.get(field)) for facts in (begun, self.identity))
            if begun.get(field) != self.identity.get(field):
                raise RequestError(
                    f"the run in {self.path} was begun with {field} {given}, not {wanted}: "
                    "continue with the same options, or give another --out"
                )
        return state


class Run(Generic[BatchT]):
    """A training run, resumed from the state of its folder if there is one."""

    def __init__(
        self,
        task: Task[BatchT],
        recipe: BaseRecipe,
        folder: RunFolder,
        device: torch.device,
        precision: Literal["no", "bf16"] = "no",  # of the forward pass
    ) -> None:
        if task.num_batches == 0:
            raise RequestError(
                f"recipe: batch_size: fewer training photos than one batch of {recipe.batch_size}"
            )
        self.task, self.recipe, self.folder = task, recipe, folder
        self.epoch = 0  # finished epochs
        self.rows: list[dict[str, str]] = []  # of `metrics.csv`
        # Raises the decay from 0 in the first steps: by step n to 1 - n^(-2/3).
        self.ema = ModelEmaV3(task.network, decay=recipe.ema_decay, use_warmup=True)
        self.schedule = one_cycle(task.optimizer, recipe.epochs * task.num_batches, recipe.warmup)
        self._autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
        self._parts: dict[str, Any] = {
            "network": task.network,
            "ema": self.ema,
            "optimizer": task.optimizer,
            "schedule": self.schedule,
        }
        if (state := folder.state) is not None:
            for name, part in self._parts.items():
                part.load_state_dict(state[name])
            self.epoch, self.rows = state["epoch"], state["rows"]

    def fit(self) -> dict[str, float]:
        """Runs the epochs that are left, loads the averaged weights and returns their figures."""
        (self.folder.path / "recipe.json").write_text(self.recipe.model_dump_json(indent=2))
        figures: dict[str, float] | None = None
        while self.epoch < self.recipe.epochs:
            losses = self._train_epoch()
            self.epoch += 1
            figures = self.task.measure(self.ema.module)
            numbers = {name: f"{value:.5g}" for name, value in (losses | figures).items()}
            rate = f"{self.schedule.get_last_lr()[0]:.3g}"
            self.rows.append({"epoch": str(self.epoch), **numbers, "lr": rate})
            self.folder.log(self.rows)
            states = {name: part.state_dict() for name, part in self._parts.items()}
            self.folder.write_state({**states, "epoch": self.epoch, "rows": self.rows})
        if figures is None:
            figures = self.task.measure(self.ema.module)
        self.task.network.load_state_dict(self.ema.module.state_dict())
        return figures

    def _train_epoch(self) -> dict[str, float]:
        """Returns the mean of each loss."""
        # Seeded by the epoch, so that a resumed run draws the same numbers.
        seed_everything(self.recipe.seed * 1000 + self.epoch)
        self.task.network.train()
        first_step = self.epoch * self.task.num_batches
        totals: dict[str, float] = {}
        batches = tqdm(
            self.task.read_batches(self.epoch),
            desc=f"epoch {self.epoch + 1} of {self.recipe.epochs}",
            total=self.task.num_batches,
        )
        for step, batch in enumerate(batches, first_step):
            losses = self._step(batch)
            self.schedule.step()
            self.ema.update(self.task.network, step=step)
            for name, loss in losses.items():
                totals[name] = totals.get(name, 0.0) + float(loss.detach())
        return {name: total / self.task.num_batches for name, total in totals.items()}

    def _step(self, batch: BatchT) -> dict[str, Tensor]:
        network, optimizer = self.task.network, self.task.optimizer
        with self._autocast:
            losses = self.task.compute_losses(network, batch)
        total = torch.stack(list(losses.values())).sum()
        if not total.isfinite():
            raise RequestError(
                f"the loss of epoch {self.epoch + 1} is {total.item()}: try a lower lr or another "
                "mixed_precision"
            )
        total.backward()
        nn.utils.clip_grad_norm_(network.parameters(), self.recipe.clip_grad)
        optimizer.step()
        optimizer.zero_grad()
        return losses


def seed_everything(seed: int) -> None:
    """Seeds every generator that training draws from."""
    random_seed(seed % 2**32)  # the most that numpy takes, from which timm's augmentations draw


def one_cycle(optimizer: Optimizer, total_steps: int, warmup: float) -> OneCycleLR:
    """Returns OneCycle with each group's own `lr` as its peak; `warmup` is a share of the steps."""
    if warmup * total_steps == 1:
        warmup /= 2  # torch divides by the number of rising steps minus 1
    peaks = [group["lr"] for group in optimizer.param_groups]
    return OneCycleLR(optimizer, max_lr=peaks, total_steps=total_steps, pct_start=warmup)


def group_parameters(
    rates: Iterable[tuple[nn.Parameter, float]], weight_decay: float
) -> list[dict[str, Any]]:
    """Groups trainable parameters by rate and decay; vectors, such as norms, do not decay."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter, lr in rates:
        if parameter.requires_grad:
            decay = weight_decay if parameter.dim() > 1 else 0.0
            groups.setdefault((lr, decay), []).append(parameter)
    return [{"params": p, "lr": lr, "weight_decay": wd} for (lr, wd), p in groups.items()]
