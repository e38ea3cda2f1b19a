"""The epochs: a network, data and a recipe -> the network with trained weights.

In: a `Trainee` (what is trained, on what). Out: its averaged (EMA) weights at the last epoch,
a `metrics.csv` and a state file to resume from. `__main__.py` puts the parts together.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.loss import AsymmetricLossMultiLabel
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from models.metrics import mean_average_precision
from models.train.features import CachedFeatures
from models.train.recipe import Recipe, RecipeError
from models.train.views import Photos

LabelledData = Photos | CachedFeatures


@dataclass(frozen=True)
class Trainee:
    """What a run trains and measures.

    Attributes:
        network: features or images [B, ...] -> logits [B, N].
        backbone: the part of `network` that takes the backbone's learning rate; may be
            empty of parameters.
        train: training data.
        val: validation data, in the served preparation.
        device: where to compute.
        workers: processes that load training data.
    """

    network: nn.Module
    backbone: nn.Module
    train: LabelledData
    val: LabelledData
    device: torch.device
    workers: int


class Run:
    """A training run that can be stopped after any epoch and resumed.

    Attributes:
        epoch: epochs done.
        ema: averaged weights, the result.
    """

    def __init__(self, trainee: Trainee, recipe: Recipe, folder: Path) -> None:
        """Prepares optimiser, schedule and averages.

        Args:
            trainee: what to train.
            recipe: how.
            folder: where `metrics.csv` and `state.pt` go.

        Raises:
            RecipeError: there are fewer photos than one batch takes.
        """
        self.trainee, self.recipe, self.folder = trainee, recipe, folder
        self.epoch = 0
        # Channels last is about twice as fast for depthwise convolutions on a CPU.
        network = trainee.network.to(trainee.device).to(memory_format=torch.channels_last)
        self.ema = ModelEmaV3(network, decay=recipe.ema_decay, use_warmup=True)
        self.loss = AsymmetricLossMultiLabel(recipe.gamma_neg, recipe.gamma_pos, recipe.clip)
        self.steps = len(trainee.train) // recipe.batch_size
        if self.steps == 0:
            raise RecipeError(f"fewer photos than one batch of {recipe.batch_size}")
        groups = parameter_groups(trainee, recipe)
        self.optimizer = torch.optim.AdamW(groups)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer,
            max_lr=[group["lr"] for group in groups],
            total_steps=recipe.epochs * self.steps,
            pct_start=recipe.warmup,
        )

    def fit(self) -> float:
        """Runs the epochs that are left.

        Returns:
            mAP of the averaged weights on validation, percent.
        """
        score = float("nan")
        while self.epoch < self.recipe.epochs:
            loss = self._train_epoch()
            self.epoch += 1
            score = mean_average_precision(*predict(self.ema.module, self.trainee))
            self._log(loss, score)
            self._save()
        return score

    def resume(self) -> bool:
        """Takes up the state that an earlier run left in the folder, if there is one."""
        path = self.folder / "state.pt"
        if not path.exists():
            return False
        state = torch.load(path, map_location=self.trainee.device, weights_only=True)
        self.trainee.network.load_state_dict(state["network"])
        self.ema.load_state_dict(state["ema"])
        self.ema.step = state["ema_step"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.epoch = state["epoch"]
        return True

    def _train_epoch(self) -> float:
        # Seeded by the epoch, so that a resumed run sees what an unbroken one would.
        seed_everything(self.recipe.seed * 1000 + self.epoch)
        network = self.trainee.network.train()
        if self.recipe.pretrained:
            freeze_batch_norm(network)
        total = 0.0
        for step, (inputs, targets) in enumerate(self._batches()):
            loss = self.loss(network(inputs), targets) / len(inputs)
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), self.recipe.clip_grad)
            self.optimizer.step()
            self.schedule.step()
            self.ema.update(network, step=self.epoch * self.steps + step)
            total += float(loss.detach())
        return total / self.steps

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        recipe, device = self.recipe, self.trainee.device
        if isinstance(self.trainee.train, CachedFeatures):
            self.trainee.train.view = self.epoch % len(self.trainee.train.features)
        loader = DataLoader(
            self.trainee.train,
            recipe.batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=self.trainee.workers,
        )
        for inputs, targets in tqdm(loader, desc=f"epoch {self.epoch + 1} of {recipe.epochs}"):
            yield mix(to_device(inputs, device), targets.to(device), recipe.mixup)

    def _log(self, loss: float, score: float) -> None:
        path = self.folder / "metrics.csv"
        fresh = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.writer(file)
            if fresh:
                writer.writerow(["epoch", "loss", "val_mAP_percent", "lr"])
            lr = self.schedule.get_last_lr()[0]
            writer.writerow([self.epoch, f"{loss:.5f}", f"{score:.3f}", f"{lr:.3g}"])

    def _save(self) -> None:
        staging = self.folder / "state.tmp"
        state = {
            "network": self.trainee.network.state_dict(),
            "ema": self.ema.state_dict(),
            "ema_step": self.epoch * self.steps,
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "epoch": self.epoch,
        }
        torch.save(state, staging)
        staging.replace(self.folder / "state.pt")


def parameter_groups(trainee: Trainee, recipe: Recipe) -> list[dict[str, Any]]:
    """Sorts trainable parameters by learning rate and weight decay.

    Backbone and head have their own peak rate; vectors (norms, biases) do not decay.
    """
    backbone = {id(p) for p in trainee.backbone.parameters()}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in trainee.network.parameters():
        if parameter.requires_grad:
            lr = recipe.backbone_lr if id(parameter) in backbone else recipe.lr
            decay = recipe.weight_decay if parameter.dim() > 1 else 0.0
            groups.setdefault((lr, decay), []).append(parameter)
    return [{"params": p, "lr": lr, "weight_decay": wd} for (lr, wd), p in groups.items()]


def mix(inputs: Tensor, targets: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Mixes each example with another of its batch (mixup, arXiv 1710.09412).

    The mixed targets are the union of both label sets: an object that is half transparent
    is still there, and the asymmetric loss wants 0/1 targets.

    Args:
        inputs: float [B, ...].
        targets: 0/1 float [B, N].
        alpha: of the Beta distribution; 0 changes nothing.
    """
    if alpha == 0:
        return inputs, targets
    share = float(np.random.default_rng(random.getrandbits(32)).beta(alpha, alpha))
    other = torch.randperm(len(inputs), device=inputs.device)
    return inputs.lerp(inputs[other], 1 - share), torch.maximum(targets, targets[other])


def freeze_batch_norm(network: nn.Module) -> None:
    """Keeps batch norms at their pretrained statistics: small batches would spoil them."""
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


@torch.inference_mode()
def predict(network: nn.Module, trainee: Trainee) -> tuple[Tensor, Tensor]:
    """Returns (logits, targets), float [n, N] each, of the validation data."""
    network.eval()
    loader = DataLoader(trainee.val, 32)
    pairs = [(network(to_device(x, trainee.device)).cpu(), y) for x, y in loader]
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


def to_device(inputs: Tensor, device: torch.device) -> Tensor:
    """Moves inputs to a device as float32, feature maps and images channels last."""
    layout = torch.channels_last if inputs.dim() == 4 else torch.contiguous_format
    return inputs.to(device, torch.float32, memory_format=layout)


def seed_everything(seed: int) -> None:
    """Seeds every generator that training draws from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # timm's augmentations draw from the global generator
    torch.manual_seed(seed)
