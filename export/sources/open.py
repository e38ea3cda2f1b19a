"""What a bundle's open head is made from: a head, a text encoder, ready label sets.

In: an `OpenRequest` and the encoder's `Source`. Out: an `OpenSource`, whose parts fit each other.
Next: `open_variants.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from export.errors import ExportError, UnusableCheckpointError, UnusablePhotosError
from export.sources.photos import LabelledPhotos, select_photos
from export.sources.trained import Source
from models.checkpoints.open_head import read_open_head
from models.config import ZeroShotMLDecoderConfig
from models.data import read_labelled_folder
from models.heads.zero_shot import ZeroShotMLDecoder
from models.text import TextEncoder, TextEncoderError, read_text_encoder
from service.bundle.card import EmbeddingSpace, OpenHead, format_first_error
from service.errors import LabelSetError
from service.labels.definition import LabelSetRecord, check_fit, define_label_set


@dataclass(frozen=True)
class OpenRequest:
    """An open head to export beside the trained one.

    Attributes:
        checkpoint: of `train_open`.
        text_encoder: folder of the sentence encoder; None takes the installed package's.
        label_sets: JSON files of ready label sets, as `POST /labels` takes them.
        photos: labelled folder to choose the threshold of labels without one on; its labels
            that were not trained with every photo's truth count. None leaves it open.
        split: which of its photos.
    """

    checkpoint: Path
    text_encoder: Path | None = None
    label_sets: tuple[Path, ...] = ()
    photos: Path | None = None
    split: str = "val"


@dataclass(frozen=True, eq=False)
class UnseenLabels:
    """Labels that an open head was not trained with every photo's truth on, and photos of them.

    What a user's own labels are to the head, these are as nearly as photos with the truth can
    show; it may have met some of them as concepts of captions.

    Attributes:
        names: L labels.
        photos: with the truth on them, targets int64 [n, L].
    """

    names: tuple[str, ...]
    photos: LabelledPhotos


@dataclass(frozen=True, eq=False)
class OpenSource:
    """All that the export needs of an open head.

    Attributes:
        head: in eval mode.
        text: the encoder of its embedding space.
        label_sets: ready label sets.
        unseen: what the threshold of labels without one is chosen on, if anything.
    """

    head: ZeroShotMLDecoder
    text: TextEncoder
    label_sets: tuple[LabelSetRecord, ...]
    unseen: UnseenLabels | None

    @property
    def template(self) -> str:
        """How a label's name becomes the text that is embedded."""
        return self.head.config.embedding_template

    def describe(self) -> OpenHead:
        """Returns the card's entry, without a threshold."""
        return describe_head(self.head.config)


def describe_head(config: ZeroShotMLDecoderConfig) -> OpenHead:
    """Returns the card's entry of a head for open labels, without a threshold."""
    space = EmbeddingSpace(
        encoder=config.embedding_encoder,
        width=config.embedding_width,
        template=config.embedding_template,
    )
    return OpenHead(kind=config.kind, embedding_space=space)


def read_open_source(request: OpenRequest, source: Source) -> OpenSource:
    """Reads an open head and what belongs to it.

    Raises:
        UnusableCheckpointError: the head is for another encoder, or the other head is open too.
        ExportError: the text encoder or a label set cannot be used.
        UnusablePhotosError: the photos show no label that was not trained.
        models.checkpoints.layouts.CheckpointError: the file cannot be read, or belongs to others.
        models.data.DataError: the photos cannot be read.
    """
    if source.is_open:
        raise UnusableCheckpointError(f"{request.checkpoint.name}: the model has an open head")
    opened = read_open_head(request.checkpoint)
    opened.check_encoder(source.network.backbone)
    try:
        text = read_text_encoder(request.text_encoder)
    except TextEncoderError as error:
        raise ExportError(str(error)) from error
    opened.check_text_encoder(text)
    space = describe_head(opened.head.config).embedding_space
    sets = tuple(_read_label_set(path, space) for path in request.label_sets)
    twice = [name for name, count in Counter(s.name for s in sets).items() if count > 1]
    if twice:
        raise ExportError(f"label set {twice[0]} is there twice")
    trained = opened.origin.label_names
    photos = request.photos
    unseen = None if photos is None else _read_unseen(photos, request.split, trained)
    return OpenSource(opened.head, text, sets, unseen)


def _read_unseen(path: Path, split: str, trained: Collection[str]) -> UnseenLabels:
    folder = read_labelled_folder(path)
    photos = select_photos(folder, split, folder.label_names)
    names = tuple(name for name in folder.label_names if name not in trained)
    targets = photos.targets[:, [folder.label_names.index(name) for name in names]]
    if not targets.any():
        raise UnusablePhotosError(f"{photos.dataset} shows no label that was not trained")
    return UnseenLabels(names, replace(photos, targets=targets))


def _read_label_set(path: Path, space: EmbeddingSpace) -> LabelSetRecord:
    try:
        record = LabelSetRecord.model_validate_json(path.read_bytes())
        check_fit(define_label_set(record), space, encodes_text=True)
    except OSError as error:
        raise ExportError(f"label set {path} cannot be read") from error
    except ValidationError as error:
        raise ExportError(f"label set {path.name}: {format_first_error(error)}") from error
    except LabelSetError as error:
        raise ExportError(f"label set {path.name}: {error}") from error
    return record
