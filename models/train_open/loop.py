"""The epochs: an open head, cached tokens, names and a recipe -> the head with trained weights.

In: an `OpenData`. Out: the averaged (EMA) weights of the last epoch, `metrics.csv` and a state
file to resume from. `__main__.py` puts the parts together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from models.heads.zero_shot import ZeroShotMLDecoder
from models.metrics import average_precisions
from models.train.loop import seed_everything
from models.train.losses import asymmetric_loss, check_finite
from models.train.query_augmentation import QueryAugmentation
from models.train.recipe import RecipeError
from models.train.schedule import one_cycle
from models.train.state import RunFolder
from models.train_open.data import OpenTargets
from models.train_open.losses import (
    choose_columns,
    classifier_loss,
    matching_loss,
    ranking_loss,
    soft_target_loss,
    weak_negative_loss,
)
from models.train_open.recipe import OpenRecipe
from models.train_open.tokens import CachedTokens

Losses = dict[str, Tensor]
_LOSSES = (
    "labels", "trained", "concepts", "captions", "teacher", "ranking", "classifier", "random"
)  # fmt: skip
_MEASURES = ("val_labels_mAP_percent", "val_held_out_mAP_percent")
_PREDICTION_BATCH = 32


@dataclass(frozen=True, eq=False)
class NameEmbeddings:
    """Embeddings of all names of a run, float of length 1.

    Attributes:
        labels: [N, E].
        concepts: [M, E].
        held_out: [H, E].
        teacher: [P, E].
    """

    labels: Tensor
    concepts: Tensor
    held_out: Tensor
    teacher: Tensor


@dataclass(frozen=True, eq=False)
class TrainedLabels:
    """The encoder's own head, and where its labels stand among ours.

    Attributes:
        head: tokens float [B, S, C] -> logits [B, N], in eval mode.
        theirs: columns of its logits, int64 [T].
        ours: columns of the same names among the run's labels, int64 [T].
    """

    head: nn.Module
    theirs: Tensor
    ours: Tensor


@dataclass(frozen=True, eq=False)
class OpenData:
    """What a run trains and measures on.

    Attributes:
        names: embeddings of the names.
        train: cached views of the training photos.
        train_targets: what is known of them.
        captions: embeddings of their captions, float [n, E]; 0 where there is none.
        val: one view, the served one, of the validation photos.
        val_targets: what is known of them.
        trained: the encoder's own head, to learn its labels from; None where it knows none.
    """

    names: NameEmbeddings
    train: CachedTokens
    train_targets: OpenTargets
    captions: Tensor
    val: CachedTokens
    val_targets: OpenTargets
    trained: TrainedLabels | None


class OpenRun:
    """A training run that can be stopped after any epoch and resumed.

    Attributes:
        epoch: epochs done.
        ema: averaged weights, the result.
    """

    def __init__(
        self,
        head: ZeroShotMLDecoder,
        data: OpenData,
        recipe: OpenRecipe,
        folder: RunFolder,
        device: torch.device,
    ) -> None:
        """Prepares optimiser, schedule and averages.

        Args:
            head: to train; its voting classifier starts as the teacher's.
            data: tokens, targets and names.
            recipe: how.
            folder: where `metrics.csv` and `state.pt` go.
            device: where to compute.

        Raises:
            RecipeError: there are fewer photos than one batch takes.
        """
        self.head, self.data, self.recipe, self.folder = head.to(device), data, recipe, folder
        self.device, self.epoch = device, 0
        if data.trained is not None:
            data.trained.head.to(device)
        self.ema = ModelEmaV3(self.head, decay=recipe.ema_decay, use_warmup=True)
        self.label_loss = asymmetric_loss(recipe.gamma_neg, 0.0, recipe.clip)
        self.augmentation = QueryAugmentation(recipe.random_queries, recipe.query_noise)
        self.steps = len(data.train_targets.labels) // recipe.batch_size
        if self.steps == 0:
            raise RecipeError(f"fewer photos than one batch of {recipe.batch_size}")
        self.optimizer = torch.optim.AdamW(_parameter_groups(self.head, recipe))
        self.schedule = one_cycle(self.optimizer, recipe.epochs * self.steps, recipe.warmup)

    def fit(self) -> dict[str, float]:
        """Runs the epochs that are left.

        Returns:
            What `measure` says of the averaged weights.

        Raises:
            LossError: the loss is no longer a number.
            MetricError: nor are the logits.
        """
        found: dict[str, float] | None = None
        while self.epoch < self.recipe.epochs:
            losses = self._train_epoch()
            self.epoch += 1
            found = self.measure()
            self._log({**losses, **found})
            self._save()
        return self.measure() if found is None else found

    def measure(self) -> dict[str, float]:
        """Returns mAP on validation, percent: of the labels and of the names held out.

        The latter takes a name that is not in a photo's caption for absent, so it is too low;
        it tells better from worse.
        """
        names, targets = self.data.names, self.data.val_targets
        logits = self.predict(torch.cat([names.labels, names.held_out]))
        values = average_precisions(logits, torch.cat([targets.labels, targets.held_out], dim=1))
        parts = values.split([len(names.labels), len(names.held_out)])
        return dict(zip(_MEASURES, (float(part.nanmean()) for part in parts), strict=True))

    def read_tokens(self) -> Iterator[Tensor]:
        """Reads the training photos' tokens as they are served, float [B, S, C] a batch."""
        rows = torch.arange(len(self.data.train_targets.labels)).split(_PREDICTION_BATCH)
        return (self.data.train.read(0, some)[0].to(self.device) for some in rows)

    @torch.inference_mode()
    def predict(self, embeddings: Tensor) -> Tensor:
        """Returns the averaged head's logits of the validation photos, float [n, L]."""
        head = self.ema.module.eval()
        rows = torch.arange(len(self.data.val_targets.labels)).split(_PREDICTION_BATCH)
        batches = (self.data.val.read(0, some)[0].to(self.device) for some in rows)
        embeddings = embeddings.to(self.device)
        return torch.cat([head(tokens, embeddings).cpu() for tokens in batches])

    def resume(self, state: dict[str, Any]) -> None:
        """Takes up the state that an earlier call of this run left, see `RunFolder`."""
        self.head.load_state_dict(state["head"])
        self.ema.load_state_dict(state["ema"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.epoch = state["epoch"]

    def _train_epoch(self) -> dict[str, float]:
        # Seeded by the epoch, so that a resumed run sees what an unbroken one would.
        seed_everything(self.recipe.seed * 1000 + self.epoch)
        self.head.train()
        totals = dict.fromkeys(_LOSSES, 0.0)
        for step, rows in enumerate(self._batches()):
            losses = self._compute_losses(rows)
            self.optimizer.zero_grad()
            total = torch.stack(list(losses.values())).sum()
            check_finite(float(total.detach()), self.epoch + 1)
            total.backward()
            nn.utils.clip_grad_norm_(self.head.parameters(), self.recipe.clip_grad)
            self.optimizer.step()
            self.schedule.step()
            self.ema.update(self.head, step=self.epoch * self.steps + step)
            for name, loss in losses.items():
                totals[name] += float(loss.detach()) / self.steps
        return totals

    def _batches(self) -> Iterator[Tensor]:
        order = torch.randperm(len(self.data.train_targets.labels))
        rows = order[: self.steps * self.recipe.batch_size].split(self.recipe.batch_size)
        for some in tqdm(rows, desc=f"epoch {self.epoch + 1} of {self.recipe.epochs}"):
            # Ascending, as the arrays lie on disk.
            yield some.sort().values

    def _compute_losses(self, rows: Tensor) -> Losses:
        """Returns the weighted losses of a batch of photos, all that are above 0."""
        data, recipe = self.data, self.recipe
        view = self.epoch % len(data.train.tokens)
        tokens, teacher = (x.to(self.device) for x in data.train.read(view, rows))
        probabilities = teacher.softmax(dim=1)
        chosen = choose_columns(probabilities, recipe.teacher_names)
        described = data.captions[rows].any(dim=1)
        texts = torch.cat(
            [data.names.labels, data.names.concepts, data.captions[rows][described],
             data.names.teacher[chosen.cpu()]]
        )  # fmt: skip
        known = [data.train_targets.labels[rows], data.train_targets.concepts[rows],
                 torch.eye(len(rows))[:, described]]  # fmt: skip
        targets = torch.cat([*(t.to(self.device) for t in known), probabilities[:, chosen]], dim=1)
        logits, targets = self._predict_augmented(tokens, texts, targets)
        sizes = [part.shape[1] for part in known] + [len(chosen), recipe.random_queries]
        labels, concepts, captions, names, random = logits.split(sizes, dim=1)
        present, mentioned, matches, soft, absent = targets.split(sizes, dim=1)
        losses = {
            "labels": recipe.label_weight * self.label_loss(labels, present),
            "concepts": recipe.concept_weight
            * weak_negative_loss(concepts, mentioned, recipe.unknown_weight, recipe.unknown_focus),
            "captions": recipe.caption_weight * matching_loss(captions, matches),
            "teacher": recipe.teacher_weight * soft_target_loss(names, soft),
            "ranking": recipe.ranking_weight
            * ranking_loss(names, teacher[:, chosen], recipe.sharpness),
            "random": recipe.label_weight * self.label_loss(random, absent),
        }
        if data.trained is not None:
            found = self._compute_trained_loss(data.trained, tokens, labels)
            losses["trained"] = recipe.trained_weight * found
        if self.head.votes is not None:
            losses["classifier"] = classifier_loss(self.head.votes.classify(tokens), probabilities)
        return losses

    def _compute_trained_loss(
        self, trained: TrainedLabels, tokens: Tensor, logits: Tensor
    ) -> Tensor:
        """Distils the encoder's own head into the logits of the same labels.

        The encoder has learned the training photos by heart, so their truth teaches little that
        holds for others; how that head ranks them does.
        """
        with torch.no_grad():
            wanted = trained.head(tokens)[:, trained.theirs]
        found = logits[:, trained.ours]
        ranking = ranking_loss(found, wanted, self.recipe.sharpness)
        return soft_target_loss(found, wanted.sigmoid()) + self.recipe.ranking_weight * ranking

    def _predict_augmented(
        self, tokens: Tensor, texts: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        embeddings, targets = self.augmentation.augment(texts.to(self.device), targets)
        logits: Tensor = self.head(tokens, functional.normalize(embeddings, dim=1))
        return logits, targets

    def _log(self, found: dict[str, float]) -> None:
        row = {"epoch": str(self.epoch), "lr": f"{self.schedule.get_last_lr()[0]:.3g}"}
        for name in (*_LOSSES, *_MEASURES):
            row[name] = f"{found[name]:.5g}" if name in found else ""
        self.folder.log(row)

    def _save(self) -> None:
        state = {
            "head": self.head.state_dict(),
            "ema": self.ema.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "epoch": self.epoch,
        }
        self.folder.write_state(state)


def _parameter_groups(head: ZeroShotMLDecoder, recipe: OpenRecipe) -> list[dict[str, Any]]:
    """Sorts parameters by learning rate and weight decay; vectors do not decay."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in head.named_parameters():
        lr = recipe.classifier_lr if name.startswith("votes.") else recipe.lr
        decay = recipe.weight_decay if parameter.dim() > 1 else 0.0
        groups.setdefault((lr, decay), []).append(parameter)
    return [{"params": p, "lr": lr, "weight_decay": wd} for (lr, wd), p in groups.items()]
