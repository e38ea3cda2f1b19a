"""What a bundle's open head is made from: a head, a text encoder, ready label sets.

In: an `OpenRequest` and the encoder's `Source`. Out: an `OpenSource`, whose parts fit each other.
Next: `open_variants.py`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from export.errors import ExportError, UnusableCheckpointError
from export.source import Source
from models.open_head import Origin, read_open_head
from models.text import TextEncoder, TextEncoderError, read_text_encoder
from models.zero_shot import ZeroShotMLDecoder
from service.card import EmbeddingSpace, OpenHead
from service.labels.definition import LabelSetRecord


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
class OpenSource:
    """All that the export needs of an open head.

    Attributes:
        request: what was asked for.
        head: in eval mode.
        origin: where it comes from.
        text: the encoder of its embedding space.
        label_sets: ready label sets.
    """

    request: OpenRequest
    head: ZeroShotMLDecoder
    origin: Origin
    text: TextEncoder
    label_sets: tuple[LabelSetRecord, ...]

    @property
    def template(self) -> str:
        """How a label's name becomes the text that is embedded."""
        return self.head.config.embedding_template

    def describe(self) -> OpenHead:
        """Returns the card's entry, without a threshold."""
        config = self.head.config
        space = EmbeddingSpace(
            encoder=config.embedding_encoder, width=config.embedding_width, template=self.template
        )
        return OpenHead(kind=config.kind, embedding_space=space)


def read_open_source(request: OpenRequest, source: Source) -> OpenSource:
    """Reads an open head and what belongs to it.

    Raises:
        UnusableCheckpointError: the head is for another encoder, or the other head is open too.
        ExportError: the text encoder or a label set cannot be used.
        models.layouts.CheckpointError: the file cannot be read, or belongs to others.
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
    sets = tuple(_read_label_set(path) for path in request.label_sets)
    twice = [name for name, count in Counter(s.name for s in sets).items() if count > 1]
    if twice:
        raise ExportError(f"label set {twice[0]} is there twice")
    return OpenSource(request, opened.head, opened.origin, text, sets)


def _read_label_set(path: Path) -> LabelSetRecord:
    try:
        return LabelSetRecord.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ExportError(f"label set {path} cannot be read") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ExportError(f"label set {path.name}: {where}: {first['msg']}") from error
