"""The task of an open head: cached tokens, names' embeddings, and the losses that train it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.checkpoints.open_head import fingerprint_encoder
from models.heads.zero_shot import ZeroShotMLDecoder
from models.metrics import average_precisions
from models.train.cache import Array, cache_outputs
from models.train.command import RunContext
from models.train.losses import asymmetric_loss
from models.train.run import Task, group_parameters
from models.train.views import Photos, Transform, describe_files
from models.train_open.losses import (
    augment_queries,
    choose_columns,
    classifier_loss,
    matching_loss,
    ranking_loss,
    soft_target_loss,
    weak_negative_loss,
)
from models.train_open.names import Vocabulary, mark_concepts
from models.train_open.recipe import OpenRecipe
from models.train_open.teacher import Sources, share_stages

Batch = tuple[int, Tensor]

_PREDICTION_BATCH = 32


@dataclass(frozen=True, eq=False)
class NameEmbeddings:
    """Embeddings of all names of a run: labels [N, E], concepts [M, E], ...; of length 1."""

    labels: Tensor
    concepts: Tensor
    held_out: Tensor
    teacher: Tensor


@dataclass(frozen=True, eq=False)
class OpenPhotos:
    """n photos of a split in V views; targets are 0/1 float."""

    tokens: Array  # of the encoder, float16 [V, n, S, C], on disk
    logits: Array  # of the teacher, float16 [V, n, P], on disk
    labels: Tensor  # [n, N], complete
    concepts: Tensor  # [n, M]; a 0 is unknown
    held_out: Tensor  # [n, H]; a 0 is unknown

    def read(self, view: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (tokens [B, S, C], teacher's logits [B, P]), float32, of some photos."""
        tokens, logits = (array[view, rows.numpy()] for array in (self.tokens, self.logits))
        return torch.from_numpy(tokens).float(), torch.from_numpy(logits).float()


@dataclass(frozen=True, eq=False)
class TrainedLabels:
    """The encoder's own head, and the columns int64 [T] of labels that it shares with the run."""

    head: nn.Module
    head_columns: Tensor
    run_columns: Tensor


@dataclass(eq=False)
class OpenTask(Task[Batch]):
    """Trains an open head on cached tokens."""

    network: ZeroShotMLDecoder  # its voting classifier starts as the teacher's
    names: NameEmbeddings
    train: OpenPhotos  # view 0 is the served one
    captions: Tensor  # embeddings of the training photos' captions, [n, E]; 0 without one
    val: OpenPhotos  # in the served view
    trained: TrainedLabels | None  # to distil; None if the encoder's head knows no label of the run
    recipe: OpenRecipe
    device: torch.device

    def __post_init__(self) -> None:
        recipe = self.recipe
        self.network.to(self.device)
        votes = self.network.votes
        assert votes is not None
        self.votes = votes
        if self.trained is not None:
            self.trained.head.to(self.device)
        self.label_loss = asymmetric_loss(recipe.gamma_neg, recipe.clip)
        self.num_batches = len(self.train.labels) // recipe.batch_size
        rates = (
            (parameter, recipe.classifier_lr if name.startswith("votes.") else recipe.lr)
            for name, parameter in self.network.named_parameters()
        )
        self.optimizer = torch.optim.AdamW(group_parameters(rates, recipe.weight_decay))

    def read_batches(self, epoch: int) -> Iterator[Batch]:
        """Yields the view of the epoch and rows of photos, ascending like the arrays on disk."""
        view = epoch % len(self.train.tokens)
        size = self.recipe.batch_size
        order = torch.randperm(len(self.train.labels))[: self.num_batches * size]
        return ((view, rows.sort().values) for rows in order.split(size))

    def compute_losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Returns the weighted losses of a batch, in the order of the log's columns."""
        recipe, names = self.recipe, self.names
        view, rows = batch
        tokens, teacher = (x.to(self.device) for x in self.train.read(view, rows))
        probabilities = teacher.softmax(dim=1)
        chosen = choose_columns(probabilities, recipe.teacher_names)
        described = self.captions[rows].any(dim=1)
        texts = torch.cat(
            [names.labels, names.concepts, self.captions[rows][described],
             names.teacher[chosen.cpu()]]
        )  # fmt: skip
        known = [self.train.labels[rows], self.train.concepts[rows],
                 torch.eye(len(rows))[:, described]]  # fmt: skip
        targets = torch.cat([*(t.to(self.device) for t in known), probabilities[:, chosen]], dim=1)
        texts, targets = augment_queries(
            texts.to(self.device), targets, recipe.random_queries, recipe.query_noise
        )
        logits = network(tokens, functional.normalize(texts, dim=1))

        sizes = [part.shape[1] for part in known] + [len(chosen), recipe.random_queries]
        labels, concepts, captions, taught, random = logits.split(sizes, dim=1)
        present, mentioned, matches, soft, absent = targets.split(sizes, dim=1)
        weak = weak_negative_loss(concepts, mentioned, recipe.unknown_weight, recipe.unknown_focus)
        ranking = ranking_loss(taught, teacher[:, chosen], recipe.sharpness)
        return {
            "labels": recipe.label_weight * self.label_loss(labels, present),
            "trained": recipe.trained_weight * self._distil_trained(tokens, labels),
            "concepts": recipe.concept_weight * weak,
            "captions": recipe.caption_weight * matching_loss(captions, matches),
            "teacher": recipe.teacher_weight * soft_target_loss(taught, soft),
            "ranking": recipe.ranking_weight * ranking,
            "classifier": classifier_loss(self.votes.classify(tokens), probabilities),
            "random": recipe.label_weight * self.label_loss(random, absent),
        }

    def _distil_trained(self, tokens: Tensor, logits: Tensor) -> Tensor:
        """Distils the encoder's own head into the logits of the same labels.

        It has memorised the training photos: its ranking generalises better than their labels.
        """
        if self.trained is None:
            return logits.new_zeros(())
        with torch.no_grad():
            wanted = self.trained.head(tokens)[:, self.trained.head_columns]
        shared = logits[:, self.trained.run_columns]
        ranking = ranking_loss(shared, wanted, self.recipe.sharpness)
        return soft_target_loss(shared, wanted.sigmoid()) + self.recipe.ranking_weight * ranking

    @torch.inference_mode()
    def measure(self, network: nn.Module) -> dict[str, float]:
        """Returns mAP on validation of the labels and of the names held out.

        A held-out name that the caption does not mention counts as absent, so its mAP is too low.
        """
        network.eval()
        texts = torch.cat([self.names.labels, self.names.held_out]).to(self.device)
        logits = torch.cat([network(tokens, texts).cpu() for tokens in self._read_served(self.val)])
        targets = torch.cat([self.val.labels, self.val.held_out], dim=1)
        labels, held_out = average_precisions(logits, targets).split(
            [len(self.names.labels), len(self.names.held_out)]
        )
        return {
            "val_labels_mAP_percent": float(labels.nanmean()),
            "val_held_out_mAP_percent": float(held_out.nanmean()),
        }

    def center_votes(self) -> None:
        """Sets the prior of the votes from the training photos as served, see `NameVotes`."""
        self.votes.center(self._read_served(self.train))

    def _read_served(self, photos: OpenPhotos) -> Iterator[Tensor]:
        rows = torch.arange(len(photos.labels)).split(_PREDICTION_BATCH)
        return (photos.read(0, some)[0].to(self.device) for some in rows)


def read_photos(
    context: RunContext, recipe: OpenRecipe, sources: Sources, names: Vocabulary
) -> tuple[OpenPhotos, OpenPhotos]:
    """Returns the training and the validation photos; runs encoder and teacher if not cached."""
    shared, student, other = (
        part.eval().to(context.device).to(memory_format=torch.channels_last)
        for part in share_stages(sources.encoder, sources.teacher.backbone)
    )
    sources.teacher.classifier.to(context.device)
    networks = "".join(map(fingerprint_encoder, (sources.encoder, sources.teacher.backbone)))

    def encode(images: Tensor) -> tuple[Tensor, Tensor]:
        features = shared(images.to(context.device, memory_format=torch.channels_last))
        return student(features), sources.teacher.classify(other(features))

    def read(split: str, photos: Photos, views: Sequence[Transform]) -> OpenPhotos:
        key = f"{networks}{describe_files(photos.images)}{views}"
        prefix, endings = f"{split}-{recipe.seed}", ("tokens.npy", "teacher.npy")
        paths = [context.name_cache(prefix, key, ending) for ending in endings]
        tokens, logits = cache_outputs(encode, photos, views, paths, context.workers)
        return OpenPhotos(
            tokens,
            logits,
            photos.targets,
            mark_concepts(photos.images, names.concepts),
            mark_concepts(photos.images, names.held_out),
        )

    views = recipe.make_views(sources.prepared)
    train, val = (Photos.of_split(context.data, split, views[0]) for split in ("train", "val"))
    return read("train", train, views), read("val", val, views[:1])


def embed_captions(sources: Sources, captions: Sequence[str]) -> Tensor:
    """Embeds captions to float [n, E]; an empty one is 0."""
    rows = [i for i, caption in enumerate(captions) if caption]
    embeddings = torch.zeros(len(captions), sources.text.width)
    embeddings[rows] = sources.text.embed([captions[i] for i in rows])
    return embeddings


def match_labels(sources: Sources, names: Vocabulary) -> TrainedLabels | None:
    """Returns the labels that the encoder's own head knows; None if there are none."""
    known = sources.label_names
    run_columns = [i for i, name in enumerate(names.labels) if name in known]
    head_columns = [known.index(names.labels[i]) for i in run_columns]
    if not run_columns:
        return None
    return TrainedLabels(sources.head, torch.tensor(head_columns), torch.tensor(run_columns))
