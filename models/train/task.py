"""The task of labelled photos: a network's trained part, its data, its loss and its mAP."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from accelerate import Accelerator
from pydantic_core import to_json
from timm.data.distributed_sampler import RepeatAugSampler
from timm.optim import Lamb
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from models.data.records import DataError, LabelledFolder
from models.metrics import mean_average_precision
from models.network import Network
from models.train.cache import Array, cache_outputs
from models.train.command import RunContext
from models.train.losses import augment_queries, make_loss, make_mix
from models.train.recipe import Recipe, RecipeError
from models.train.run import Task, group_parameters
from models.train.views import Photos, describe_files, evaluation_transform, training_transform

Batch = tuple[Tensor, Tensor]

_OPTIMIZERS = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "lamb": Lamb}
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
# Fields of a recipe that cached features depend on, in the order of the cache's keys.
_FEATURE_FIELDS = (
    "backbone", "pretrained", "frozen_stages", "image_size", "train_size", "crop_scale",
    "train_resize", "cutout", "auto_augment", "erase", "seed",
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
    """The trained stages and the head: features [B, ...] (and embeddings [L, E]) -> logits [B, N].

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

    def forward(self, features: Tensor, *embeddings: Tensor) -> Tensor:
        """Maps features (and embeddings) to logits."""
        stages, head = self
        return head(stages(features), *embeddings)


@dataclass(frozen=True, eq=False)
class ZeroShotLabels:
    """Word vectors float [N, E] of all labels, and which of them, bool [N], are used."""

    embeddings: Tensor
    seen: Tensor  # in training
    validated: Tensor  # the unseen labels; the seen ones if there are none

    @classmethod
    def of(cls, folder: LabelledFolder, device: torch.device) -> Self:
        """Reads a folder with word vectors; raises DataError for fewer than 2 seen labels."""
        vectors = folder.word_vectors
        assert vectors is not None  # `build_network` requires them
        if len(vectors.seen) < 2:
            raise DataError(f"data set {folder.name} has fewer than 2 labels for training")
        seen, validated = (
            torch.tensor([name in chosen for name in folder.label_names], device=device)
            for chosen in (vectors.seen, vectors.unseen or vectors.seen)
        )
        return cls(torch.from_numpy(vectors.embeddings).to(device), seen, validated)


@dataclass(eq=False)
class LabelTask(Task[Batch]):
    """Trains a network on labelled photos, or on features of the frozen stages."""

    network: nn.Module  # inputs [B, ...] -> logits [B, N]; a zero-shot one takes embeddings too
    backbone: nn.Module  # the part of `network` with the backbone's learning rate
    train: Photos | CachedFeatures
    val: Photos | CachedFeatures  # in the served preparation
    recipe: Recipe
    accelerator: Accelerator
    workers: int = 0  # processes that load training data
    zero_shot: ZeroShotLabels | None = None

    def __post_init__(self) -> None:
        recipe = self.recipe
        # Channels last is about twice as fast for depthwise convolutions on a CPU.
        self.network.to(self.accelerator.device).to(memory_format=torch.channels_last)
        of_backbone = {id(parameter) for parameter in self.backbone.parameters()}
        rates = (
            (p, recipe.backbone_lr if id(p) in of_backbone else recipe.lr)
            for p in self.network.parameters()
        )
        groups = group_parameters(rates, recipe.weight_decay, decay_all=recipe.decay_all)
        self.optimizer = _OPTIMIZERS[recipe.optimizer](groups)
        self.num_batches = len(self.train) // recipe.batch_size // self.accelerator.num_processes
        self.loss = make_loss(recipe)
        self.mix = make_mix(recipe, self.train.targets.shape[1])

    def read_batches(self, epoch: int) -> Iterator[Batch]:
        """Yields mixed inputs [B, ...] and targets [B, N]."""
        if isinstance(self.train, CachedFeatures):
            self.train.view = epoch % len(self.train.features)
        sampler = None
        if (repeats := self.recipe.repeats) > 1:
            sampler = RepeatAugSampler(
                self.train, num_replicas=1, rank=0, num_repeats=repeats, selected_round=0
            )
        loader = self.accelerator.prepare_data_loader(
            DataLoader(
                self.train,
                self.recipe.batch_size,
                shuffle=sampler is None,
                sampler=sampler,
                drop_last=True,
                num_workers=self.workers,
            )
        )
        loader.set_epoch(epoch)  # otherwise each epoch has the first one's order
        for inputs, targets in loader:
            yield self.mix(self._to_device(inputs), targets)

    def compute_losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Returns the recipe's loss alone."""
        inputs, targets = batch
        embeddings: tuple[Tensor, ...] = ()
        if (labels := self.zero_shot) is not None:
            queries, targets = augment_queries(
                labels.embeddings[labels.seen],
                targets[:, labels.seen],
                self.recipe.random_queries,
                self.recipe.query_noise,
            )
            embeddings = (queries,)
        return {"loss": self.loss(network(inputs, *embeddings), targets)}

    @torch.inference_mode()
    def measure(self, network: nn.Module) -> dict[str, float]:
        """Returns mAP on validation, of a zero-shot network over the unseen labels."""
        network.eval()
        targets = self.val.targets
        embeddings: tuple[Tensor, ...] = ()
        if (labels := self.zero_shot) is not None:
            targets = targets[:, labels.validated.cpu()]
            embeddings = (labels.embeddings[labels.validated],)
        loader = DataLoader(self.val, 32)
        logits = [network(self._to_device(inputs), *embeddings).cpu() for inputs, _ in loader]
        return {"val_mAP_percent": mean_average_precision(torch.cat(logits), targets)}

    def _to_device(self, inputs: Tensor) -> Tensor:
        layout = torch.channels_last if inputs.dim() == 4 else torch.contiguous_format
        return inputs.to(self.accelerator.device, torch.float32, memory_format=layout)


def freeze_named(body: nn.Module, pattern: str) -> None:
    """Freezes the parameters that a regular expression names; raises RecipeError if it has none."""
    try:
        chosen = [p for name, p in body.named_parameters() if re.search(pattern, name)]
    except re.error as error:
        raise RecipeError(f"recipe: frozen_names {pattern!r} is invalid: {error}") from error
    if not chosen:
        raise RecipeError(f"recipe: frozen_names {pattern!r} matches no parameter of the backbone")
    for parameter in chosen:
        parameter.requires_grad_(False)


def make_task(network: Network, recipe: Recipe, context: RunContext, start: str) -> LabelTask:
    """Returns the task of training a network, with which it shares its parameters.

    `start` is the fingerprint of `--init`, "" for none. Raises DataError and RecipeError.
    """
    frozen, tail = network.backbone.split(recipe.frozen_stages)
    frozen.eval().requires_grad_(False)
    if recipe.frozen_names is not None:
        freeze_named(network.backbone.body, recipe.frozen_names)
    prepared = network.config.input
    is_zero_shot = recipe.head == "zero_shot_ml_decoder"

    def encode(images: Tensor) -> tuple[Tensor]:
        return (frozen(images.to(context.device, memory_format=torch.channels_last)),)

    def cache(split: str, photos: Photos, views: int) -> CachedFeatures:
        fields = to_json({name: getattr(recipe, name) for name in _FEATURE_FIELDS}).decode()
        files = describe_files(photos.images)
        key = f"{fields}{views}{files}{start}{prepared.model_dump_json()}"
        path = context.name_cache(split, key, "npy")
        frozen.to(context.device).to(memory_format=torch.channels_last)
        transforms = [photos.transform] * views
        with context.accelerator.main_process_first():  # the others find the file
            (features,) = cache_outputs(encode, photos, transforms, [path], context.workers)
        return CachedFeatures(features, photos.targets)

    train: Photos | CachedFeatures
    val: Photos | CachedFeatures
    train = Photos.of_split(context.data, "train", training_transform(recipe, prepared))
    val = Photos.of_split(context.data, "val", evaluation_transform(prepared))
    if recipe.frozen_stages:
        train, val = cache("train", train, recipe.views), cache("val", val, 1)
    from_weights = recipe.pretrained or bool(start)
    return LabelTask(
        zero_shot=ZeroShotLabels.of(context.data, context.device) if is_zero_shot else None,
        network=TrainedPart(tail, network.head, from_weights and recipe.freeze_batch_norm),
        backbone=tail,
        train=train,
        val=val,
        recipe=recipe,
        accelerator=context.accelerator,
        workers=context.workers if recipe.frozen_stages == 0 else 0,
    )
