"""An open head and its inputs: text encoder, ready label sets, photos of labels not trained."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from export import ExportError
from export.sources.label_sets import EVERYDAY, read_label_set
from export.sources.labelled_photos import LabelledPhotos, PhotoReader, read_unseen
from export.sources.trained import Source
from models.checkpoints.open_head import read_open_head
from models.config import OpenHeadConfig, RamConfig
from models.heads.cosine import CosineHead
from models.heads.zero_shot import ZeroShotMLDecoder
from models.text import TextEncoder, read_text_encoder
from models.towers import TowerNetwork
from service.bundle.card import Activation, EmbeddingSpace, OpenHead
from service.labels.definition import Definition


@dataclass(frozen=True)
class OpenRequest:
    """Paths of an open head to export with the trained one, and of photos and label sets."""

    open_head: Path | None = None  # of `train_open`; None if the model has both towers
    text_encoder: Path | None = None
    label_set: Sequence[Path] = ()  # without trained labels, `EVERYDAY` by default
    open_photos: Path | None = None  # labels the head was trained on are skipped
    open_split: str = "val"


@dataclass(frozen=True, eq=False)
class OpenSource:
    """The contents of the files of an `OpenRequest`."""

    head: ZeroShotMLDecoder | CosineHead  # in eval mode
    text: TextEncoder  # of its embedding space
    label_sets: tuple[Definition, ...]
    unseen: LabelledPhotos | None  # with labels that are not trained; captions may have had some


def describe_head(config: OpenHeadConfig, activation: Activation = "sigmoid") -> OpenHead:
    """Returns the card's entry of an open head, without calibration and threshold."""
    space = EmbeddingSpace(
        encoder=config.embedding_encoder,
        width=config.embedding_width,
        template=config.embedding_template,
        descriptions=(isinstance(config, RamConfig) and config.num_descriptions) or 1,
    )
    return OpenHead(kind=config.kind, activation=activation, embedding_space=space)


def read_open_source(request: OpenRequest, source: Source, reader: PhotoReader) -> OpenSource:
    """Reads an open head; raises CheckpointError if it has another encoder or text encoder."""
    head, text, trained = _read_head(request, source)
    space = describe_head(head.config).embedding_space
    paths = request.label_set or ([EVERYDAY] if source.is_open else [])
    sets = tuple(read_label_set(path, space) for path in paths)
    twice = [name for name, count in Counter(s.name for s in sets).items() if count > 1]
    if twice:
        raise ExportError(f"label set {twice[0]} is repeated")
    unseen = None
    if request.open_photos is not None:
        unseen = read_unseen(request.open_photos, request.open_split, trained, reader)
    return OpenSource(head, text, sets, unseen)


def _read_head(
    request: OpenRequest, source: Source
) -> tuple[ZeroShotMLDecoder | CosineHead, TextEncoder, tuple[str, ...]]:
    """Returns the head, its text encoder and the names of the labels that it was trained on."""
    if request.open_head is None:
        if source.text is None or not isinstance(source.network, TowerNetwork):
            option = "--label-set" if request.label_set else "--open-photos"
            raise ExportError(f"{option} needs --open-head: the checkpoint has no text encoder")
        return source.network.head, source.text, ()
    if source.is_open or isinstance(source.network.config.head, RamConfig):
        raise ExportError(f"{request.open_head.name}: the model has an open head")
    opened = read_open_head(request.open_head)
    opened.check_encoder(source.network.backbone)
    text = read_text_encoder(request.text_encoder)
    opened.check_text_encoder(text)
    return opened.head, text, opened.origin.label_names
