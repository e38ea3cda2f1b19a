"""The epochs: a network, data and a recipe -> the network with trained weights.

In: a `Trainee` (what is trained, on what). Out: its averaged (EMA) weights at the last epoch,
a `metrics.csv` and a state file to resume from. `__main__.py` puts the parts together.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from timm.data.distributed_sampler import RepeatAugSampler
from timm.optim import Lamb
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from models.metrics import mean_average_precision
from models.train.features import CachedFeatures
from models.train.losses import check_finite, make_loss
from models.train.mixing import make_mix
from models.train.open_labels import OpenLabels
from models.train.recipe import Recipe, RecipeError
from models.train.schedule import one_cycle
from models.train.state import RunFolder
from models.train.views import Photos

LabelledData = Photos | CachedFeatures

_PROCESS_SEEDS = 1_000_000_007  # far more than a process uses up

_OPTIMIZERS = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "lamb": Lamb}


@dataclass(frozen=True)
class Trainee:
    """What a run trains and measures.

    Attributes:
        network: features or images [B, ...] -> logits [B, N]; a zero-shot one takes label
            embeddings as second argument.
        backbone: the part of `network` that takes the backbone's learning rate; may be
            empty of parameters.
        train: training data.
        val: validation data, in the served preparation.
        accelerator: where and in which precision to compute, alone or among processes.
        workers: processes that load training data.
        from_weights: the network starts from trained weights.
        open_labels: embeddings of the labels for a zero-shot network.
    """

    network: nn.Module
    backbone: nn.Module
    train: LabelledData
    val: LabelledData
    accelerator: Accelerator
    workers: int
    from_weights: bool = False
    open_labels: OpenLabels | None = None

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        device: torch.device = self.accelerator.device
        return device


class Run:
    """A training run that can be stopped after any epoch and resumed.

    Attributes:
        epoch: epochs done.
        ema: averaged weights, the result.
    """

    def __init__(self, trainee: Trainee, recipe: Recipe, folder: RunFolder) -> None:
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
        self.loss = make_loss(recipe)
        self.mix = make_mix(recipe, trainee.train.targets.shape[1], recipe.single_label)
        accelerator = trainee.accelerator
        batches = len(trainee.train) // recipe.batch_size // accelerator.num_processes
        if batches == 0:
            raise RecipeError(f"fewer photos than one batch of {recipe.batch_size}")
        self.steps = math.ceil(batches / recipe.accumulate)  # the last may be a shorter one
        groups = parameter_groups(trainee, recipe)
        # Learning rates and weight decay are the groups' own.
        self.optimizer = _OPTIMIZERS[recipe.optimizer](groups)
        self.parallel = accelerator.prepare_model(network)
        self.stepper = accelerator.prepare_optimizer(self.optimizer)
        self.schedule = one_cycle(self.optimizer, recipe.epochs * self.steps, recipe.warmup)

    def fit(self) -> float:
        """Runs the epochs that are left.

        Returns:
            mAP of the averaged weights on validation, percent.

        Raises:
            LossError: the loss is no longer a number.
            MetricError: nor are the logits.
        """
        score: float | None = None
        while self.epoch < self.recipe.epochs:
            loss = self._train_epoch()
            self.epoch += 1
            score = self._measure()
            if self.trainee.accelerator.is_main_process:
                self._log(loss, score)
                self._save()
        return self._measure() if score is None else score

    def _measure(self) -> float:
        return mean_average_precision(*predict(self.ema.module, self.trainee))

    def resume(self, state: dict[str, Any]) -> None:
        """Takes up the state that an earlier call of this run left, see `RunFolder`."""
        self.trainee.network.load_state_dict(state["network"])
        self.ema.load_state_dict(state["ema"])
        self.ema.step = state["ema_step"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        if state.get("scaler") and self.trainee.accelerator.scaler is not None:
            self.trainee.accelerator.scaler.load_state_dict(state["scaler"])
        self.epoch = state["epoch"]

    def _train_epoch(self) -> float:
        # Seeded by the epoch, so that a resumed run sees what an unbroken one would. Each process
        # augments in its own way; the order of the photos is the first one's, by accelerate.
        process = self.trainee.accelerator.process_index
        seed_everything(self.recipe.seed * 1000 + self.epoch + process * _PROCESS_SEEDS)
        self.parallel.train()
        if self.trainee.from_weights and self.recipe.freeze_batch_norm:
            freeze_batch_norm(self.trainee.network)
        losses = []
        step = self.epoch * self.steps
        for inputs, targets in self._batches():
            with self.trainee.accelerator.accumulate(self.parallel):
                losses.append(self._step(inputs, targets))
            if self.trainee.accelerator.sync_gradients:
                self.schedule.step()
                self.ema.update(self.trainee.network, step=step)
                step += 1
        return sum(losses) / len(losses)

    def _step(self, inputs: Tensor, targets: Tensor) -> float:
        accelerator = self.trainee.accelerator
        embeddings: tuple[Tensor, ...] = ()
        if self.trainee.open_labels is not None:
            queries, targets = self.trainee.open_labels.for_training(targets)
            embeddings = (queries,)
        loss = self.loss(self.parallel(inputs, *embeddings), targets)
        accelerator.backward(loss)
        if accelerator.sync_gradients and self.recipe.clip_grad:
            accelerator.clip_grad_norm_(self.parallel.parameters(), self.recipe.clip_grad)
        self.stepper.step()
        self.stepper.zero_grad()
        return check_finite(float(loss.detach()), self.epoch + 1)

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        recipe, data = self.recipe, self.trainee.train
        if isinstance(data, CachedFeatures):
            data.view = self.epoch % len(data.features)
        sampler = None
        if recipe.repeats > 1:
            sampler = RepeatAugSampler(
                data, num_replicas=1, rank=0, num_repeats=recipe.repeats, selected_round=0
            )
        loader = self.trainee.accelerator.prepare_data_loader(
            DataLoader(
                data,
                recipe.batch_size,
                shuffle=sampler is None,
                sampler=sampler,
                drop_last=True,
                num_workers=self.trainee.workers,
            )
        )
        loader.set_epoch(self.epoch)  # or else the sampler would draw as in the first
        for inputs, targets in tqdm(loader, desc=f"epoch {self.epoch + 1} of {recipe.epochs}"):
            yield self.mix(to_device(inputs, self.trainee.device), targets)

    def _log(self, loss: float, score: float) -> None:
        row = {"epoch": str(self.epoch), "loss": f"{loss:.5f}", "val_mAP_percent": f"{score:.3f}"}
        self.folder.log({**row, "lr": f"{self.schedule.get_last_lr()[0]:.3g}"})

    def _save(self) -> None:
        state = {
            "network": self.trainee.network.state_dict(),
            "ema": self.ema.state_dict(),
            "ema_step": self.epoch * self.steps,
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": getattr(self.trainee.accelerator.scaler, "state_dict", dict)(),
            "epoch": self.epoch,
        }
        self.folder.write_state(state)


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


def freeze_batch_norm(network: nn.Module) -> None:
    """Keeps batch norms at their pretrained statistics: small batches would spoil them."""
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


@torch.inference_mode()
def predict(network: nn.Module, trainee: Trainee) -> tuple[Tensor, Tensor]:
    """Returns (logits, targets), float [n, N] each, of the validation data.

    With open labels, of those that training does not see, where there are any.
    """
    network.eval()
    opened = trainee.open_labels
    embeddings = () if opened is None else (opened.validation_embeddings,)
    loader = DataLoader(trainee.val, 32)
    pairs = [(network(to_device(x, trainee.device), *embeddings).cpu(), y) for x, y in loader]
    logits, targets = torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
    return logits, targets if opened is None else opened.validation_targets(targets)


def to_device(inputs: Tensor, device: torch.device) -> Tensor:
    """Moves inputs to a device as float32, feature maps and images channels last."""
    layout = torch.channels_last if inputs.dim() == 4 else torch.contiguous_format
    return inputs.to(device, torch.float32, memory_format=layout)


def seed_everything(seed: int) -> None:
    """Seeds every generator that training draws from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # timm's augmentations draw from the global generator
    torch.manual_seed(seed)
