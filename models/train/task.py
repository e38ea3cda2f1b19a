"""The task of labelled photos: a network's trained part, its data, its loss and its mAP."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from pydantic_core import to_json
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from models.metrics import mean_average_precision
from models.network import Network
from models.train.cache import Array, cache_outputs
from models.train.command import RunContext
from models.train.losses import asymmetric_loss
from models.train.recipe import Recipe
from models.train.run import Task, group_parameters
from models.train.views import Photos, describe_files, evaluation_transform, training_transform

Batch = tuple[Tensor, Tensor]

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
# Fields of a recipe that cached features depend on, in the order of the cache's keys.
_FEATURE_FIELDS = (
    "backbone", "pretrained", "frozen_stages", "image_size", "train_size", "crop_scale",
    "auto_augment", "erase", "seed",
)  # fmt: skip


@dataclass(eq=False)
class CachedFeatures(Dataset[Batch]):
    """Features float16 [views, photos, ...] with targets [photos, N], read in one `view`."""

    features: Array
    targets: Tensor
    view: int = 0

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> Batch:
        return torch.from_numpy(self.features[self.view, index].copy()), self.targets[index]


class TrainedPart(nn.Sequential):
    """The trained stages and the head: features [B, ...] -> logits [B, N].

    With `freeze_batch_norm`, batch norms keep their statistics in training too.
    """

    def __init__(self, stages: nn.Module, head: nn.Module, freeze_batch_norm: bool) -> None:
        super().__init__(stages, head)
        self.freeze_batch_norm = freeze_batch_norm

    def train(self, mode: bool = True) -> Self:
        """Sets the mode."""
        super().train(mode)
        for module in self.modules():
            if self.freeze_batch_norm and isinstance(module, _BATCH_NORMS):
                module.eval()
        return self


@dataclass(eq=False)
class LabelTask(Task[Batch]):
    """Trains a network on labelled photos, or on features of the frozen stages."""

    network: nn.Module  # inputs [B, ...] -> logits [B, N]
    backbone: nn.Module  # the part of `network` with the backbone's learning rate
    train: Photos | CachedFeatures
    val: Photos | CachedFeatures  # in the served preparation
    recipe: Recipe
    device: torch.device
    workers: int = 0  # processes that load training data

    def __post_init__(self) -> None:
        recipe = self.recipe
        # Channels last is about twice as fast for depthwise convolutions on a CPU.
        self.network.to(self.device).to(memory_format=torch.channels_last)
        of_backbone = {id(parameter) for parameter in self.backbone.parameters()}
        rates = (
            (p, recipe.backbone_lr if id(p) in of_backbone else recipe.lr)
            for p in self.network.parameters()
        )
        self.optimizer = torch.optim.AdamW(group_parameters(rates, recipe.weight_decay))
        self.num_batches = len(self.train) // recipe.batch_size
        self.loss = asymmetric_loss(recipe.gamma_neg, recipe.clip)

    def read_batches(self, epoch: int) -> Iterator[Batch]:
        """Yields inputs [B, ...] and targets [B, N]."""
        if isinstance(self.train, CachedFeatures):
            self.train.view = epoch % len(self.train.features)
        loader = DataLoader(
            self.train,
            self.recipe.batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=self.workers,
        )
        for inputs, targets in loader:
            yield self._to_device(inputs), targets.to(self.device)

    def compute_losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Returns the asymmetric loss alone."""
        inputs, targets = batch
        # In bfloat16 the loss would take the logarithm of 0.
        return {"loss": self.loss(network(inputs).float(), targets)}

    @torch.inference_mode()
    def measure(self, network: nn.Module) -> dict[str, float]:
        """Returns mAP on validation."""
        network.eval()
        logits = [network(self._to_device(inputs)).cpu() for inputs, _ in DataLoader(self.val, 32)]
        return {"val_mAP_percent": mean_average_precision(torch.cat(logits), self.val.targets)}

    def _to_device(self, inputs: Tensor) -> Tensor:
        layout = torch.channels_last if inputs.dim() == 4 else torch.contiguous_format
        return inputs.to(self.device, torch.float32, memory_format=layout)


def make_task(network: Network, recipe: Recipe, context: RunContext, start: str) -> LabelTask:
    """Returns the task of training a network, with which it shares its parameters.

    `start` is the fingerprint of `--init`, "" for none. Raises RequestError.
    """
    frozen, tail = network.backbone.split(recipe.frozen_stages)
    frozen.eval().requires_grad_(False)
    prepared = network.config.input

    def encode(images: Tensor) -> tuple[Tensor]:
        return (frozen(images.to(context.device, memory_format=torch.channels_last)),)

    def cache(split: str, photos: Photos, views: int) -> CachedFeatures:
        fields = to_json({name: getattr(recipe, name) for name in _FEATURE_FIELDS}).decode()
        files = describe_files(photos.images)
        key = f"{fields}{views}{files}{start}{prepared.model_dump_json()}"
        path = context.name_cache(split, key, "npy")
        frozen.to(context.device).to(memory_format=torch.channels_last)
        transforms = [photos.transform] * views
        (features,) = cache_outputs(encode, photos, transforms, [path], context.workers)
        return CachedFeatures(features, photos.targets)

    train = Photos.of_split(context.data, "train", training_transform(recipe, prepared))
    val = Photos.of_split(context.data, "val", evaluation_transform(prepared))
    caches = recipe.frozen_stages > 0
    return LabelTask(
        network=TrainedPart(tail, network.head, recipe.pretrained or bool(start)),
        backbone=tail,
        train=cache("train", train, recipe.views) if caches else train,
        val=cache("val", val, 1) if caches else val,
        recipe=recipe,
        device=context.device,
        workers=0 if caches else context.workers,
    )
