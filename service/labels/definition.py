"""The definition of a label set: what a user gives, checked, before any model has seen it.

In: JSON values of a request or of a file. Out: a `Definition`: names, prompt texts, thresholds
and the embeddings that were given. Next: `texts.py`, which makes the embeddings that were not.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    BeforeValidator,
    Field,
    StrictBool,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from service.bundle.card import EmbeddingSpace, Record
from service.engine.heads import Embeddings
from service.errors import InvalidLabelSet, OtherEmbeddings, TextNotEncodable
from service.labels.text import LabelSetName, LabelText, PromptText

MAX_EMBEDDING_VALUES = 65_536
EMBEDDING_LENGTHS = (1e-4, 1e4)
"""Shortest and longest embedding (Euclidean): those of text encoders and word vectors are between 1
and a few hundred; far beyond, their squares overflow or vanish in the graphs."""


def _refuse_truth(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticCustomError("truth", "Input should be a number, not true or false")
    return value


NoTruth = BeforeValidator(_refuse_truth)
"""For numbers: JSON tells `true` from 1, Python does not."""


class OpenLabel(Record):
    """One label of a set; a bare string is a label that has only a name.

    Attributes:
        name: shown to users; once in a set.
        prompt: text that is encoded as it is, instead of the name in the bundle's template.
        calibrated: as the service tells it: where it is false, `threshold` is none of the label's
            own and is dropped.
        threshold: score (0..1) at and above which the label is predicted.
        embedding: E numbers in the bundle's embedding space, instead of any text.
        own_embedding: as the service tells it, which does not tell the numbers: where it is true,
            the label is refused without them.
    """

    name: LabelText
    prompt: PromptText | None = None
    # Before `threshold`, whose check looks at it.
    calibrated: StrictBool | None = Field(default=None, exclude=True)
    threshold: Annotated[float | None, NoTruth] = Field(
        default=None, ge=0.0, le=1.0, allow_inf_nan=False
    )
    embedding: (
        Annotated[list[float], Field(max_length=MAX_EMBEDDING_VALUES, fail_fast=True)] | None
    ) = None
    own_embedding: StrictBool | None = Field(default=None, exclude=True)

    @field_validator("threshold")
    @classmethod
    def _drop_shared(cls, value: float | None, info: ValidationInfo) -> float | None:
        # Kept, it would be the label's own from then on.
        return None if info.data.get("calibrated") is False else value

    @model_validator(mode="before")
    @classmethod
    def _take_bare_name(cls, value: object) -> object:
        if isinstance(value, str):
            return {"name": value}
        if not isinstance(value, dict | cls):
            raise PydanticCustomError("label", "A label should be a text or an object")
        return value

    @model_validator(mode="after")
    def _take_one_source(self) -> OpenLabel:
        if self.prompt is not None and self.embedding is not None:
            raise PydanticCustomError(
                "two_sources", "A label takes a prompt or an embedding, not both"
            )
        if self.own_embedding and self.embedding is None:
            raise PydanticCustomError(
                "embedding_not_told",
                "The label has an embedding of its own, which is not told: give it again, or leave "
                "out own_embedding to have a text encoded",
            )
        return self


class LabelSetRecord(Record):
    """A label set as JSON, in a request or in a file.

    What the service tells of a set is one too, so that it can be changed and sent back.

    Attributes:
        name: name of the set; a file's name has to agree with it.
        labels: at least one.
        embedding_space: fingerprint of the space of the given embeddings; None trusts them.
        version: as the service tells it, and the three below: they say nothing here.
        origin: see there.
        read_only: see there.
        num_labels: see there.
    """

    name: LabelSetName
    labels: list[OpenLabel] = Field(min_length=1)
    embedding_space: str | None = Field(default=None, max_length=200)
    version: str | None = Field(default=None, exclude=True)
    origin: str | None = Field(default=None, exclude=True)
    read_only: bool | None = Field(default=None, exclude=True)
    num_labels: int | None = Field(default=None, exclude=True)


@dataclass(frozen=True, eq=False)
class Definition:
    """A label set as its author gave it, as columns.

    Attributes:
        name: name of the set.
        names: L label names, each once.
        prompts: L texts to encode as they are; None where the name is used.
        thresholds: L scores (0..1); None where the label has none of its own.
        given: positions of the M labels that came with an embedding, ascending.
        embeddings: their embeddings, float32 [M, E].
        embedding_space: fingerprint of their space; None where the author did not tell.
    """

    name: str
    names: tuple[str, ...]
    prompts: tuple[str | None, ...]
    thresholds: tuple[float | None, ...]
    given: tuple[int, ...] = ()
    embeddings: Embeddings = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    embedding_space: str | None = None

    @cached_property
    def digest(self) -> str:
        """A hash of all that makes the set what it is, sha256 in hex."""
        columns = [self.name, self.names, self.prompts, self.thresholds, self.given]
        digest = hashlib.sha256(json.dumps(columns).encode())
        digest.update(np.ascontiguousarray(self.embeddings, "<f4").tobytes())
        return digest.hexdigest()

    def texts(self, space: EmbeddingSpace) -> tuple[str, ...]:
        """Returns the text to encode of every label, the bundle's template applied."""
        return tuple(
            space.template.replace("{}", name) if prompt is None else prompt
            for name, prompt in zip(self.names, self.prompts, strict=True)
        )


def define_label_set(record: LabelSetRecord) -> Definition:
    """Turns the JSON record of a set into its columns.

    Raises:
        InvalidLabelSet: a name stands twice, or the given embeddings differ in width.
    """
    labels = record.labels
    given = tuple(i for i, label in enumerate(labels) if label.embedding is not None)
    # Each for itself: a thread that reads millions of numbers at once lets no other one run.
    rows = [np.array(labels[i].embedding, np.float64) for i in given]
    if len({len(row) for row in rows}) > 1:
        raise InvalidLabelSet("The embeddings differ in their number of values")
    with np.errstate(over="ignore"):  # too large for float32 becomes inf, refused later
        embeddings = np.array(rows, np.float64).astype(np.float32)
    return Definition(
        name=record.name,
        names=refuse_duplicates(tuple(label.name for label in labels)),
        prompts=tuple(label.prompt for label in labels),
        thresholds=tuple(label.threshold for label in labels),
        given=given,
        embeddings=embeddings.reshape(len(rows), len(rows[0]) if rows else 0),
        embedding_space=record.embedding_space,
    )


def refuse_duplicates(names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names as they are.

    Raises:
        InvalidLabelSet: one of them stands twice.
    """
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InvalidLabelSet(f"Label '{twice[0][:80]}' stands twice")
    return names


def check_candidates(names: Sequence[object], most: int) -> None:
    """Checks that there are not too many candidate labels, whatever they are.

    Raises:
        InvalidLabelSet: there are.
    """
    if len(names) > most:
        raise InvalidLabelSet(f"A request takes at most {most} candidate labels")


def check_fit(definition: Definition, space: EmbeddingSpace, *, encodes_text: bool) -> None:
    """Checks that a definition can be used in a space, before anything is computed.

    Args:
        definition: the set.
        space: where the embeddings have to be.
        encodes_text: whether a label needs no more than a name.

    Raises:
        OtherEmbeddings: its embeddings are of another space.
        InvalidLabelSet: its embeddings cannot be used.
        TextNotEncodable: a label has no embedding, and texts cannot be encoded.
    """
    if definition.embedding_space not in (None, space.fingerprint):
        raise OtherEmbeddings("embeddings of another space")
    check_embeddings(definition.embeddings, space.width)
    if not encodes_text and len(definition.given) < len(definition.names):
        raise TextNotEncodable("a label without embedding, and no text encoder")


def check_embeddings(embeddings: NDArray[np.floating], width: int) -> None:
    """Checks that embeddings [M, E] can be used.

    Raises:
        InvalidLabelSet: another width than `width`, NaN or infinity, or a length of zero or out of
            all proportion (`EMBEDDING_LENGTHS`).
    """
    if len(embeddings) and embeddings.shape[1:] != (width,):
        raise InvalidLabelSet(f"An embedding needs {width} values")
    _refuse_rows(~np.isfinite(embeddings).all(axis=-1), "has a value that is not finite")
    lengths = np.sqrt(np.einsum("me,me->m", embeddings, embeddings, dtype=np.float64))
    shortest, longest = EMBEDDING_LENGTHS
    unusual = (lengths < shortest) | (lengths > longest)
    _refuse_rows(unusual, f"has a length that is not between {shortest:g} and {longest:g}")


def _refuse_rows(wrong: NDArray[np.bool_], reason: str) -> None:
    if wrong.any():  # of thousands, nobody would find the one
        raise InvalidLabelSet(f"Embedding {wrong.argmax() + 1} of {len(wrong)} {reason}")
