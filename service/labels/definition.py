"""Definitions of label sets: JSON, checked, as columns; only `check_fit` depends on a model."""

import hashlib
import json
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StrictBool, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from service.bundle.card import Calibration, EmbeddingSpace, Record, write_prompt
from service.engine.heads import Embeddings
from service.errors import InvalidLabelSet, NoOpenHead, OtherEmbeddings, TextNotEncodable, quote
from service.fields import LabelSetName, LabelText, NoBool, PromptText
from service.labels.sources.learnt import Lessons
from service.labels.words import NamedWords, Words, collect_words

MAX_EMBEDDING_VALUES = 65_536
EMBEDDING_LENGTHS = (1e-4, 1e4)
"""Shortest and longest embedding (Euclidean). Those of text encoders and word vectors are between 1
and a few hundred; far beyond, their squares overflow or vanish in the graphs."""


_Score = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]


class OpenLabel(NamedWords):
    """One label of a set; a bare string is a label that has only a name.

    Attributes:
        prompt: text to encode instead of the name in the bundle's template.
        calibrated: from an answer of the service: if false, `threshold` is dropped.
        fit: from an answer about a label that has learnt from tags: its `threshold` is dropped.
        threshold: score at and above which the label is predicted.
        embedding: E numbers in the bundle's embedding space, instead of any text.
        own_embedding: from an answer of the service, which omits `embedding`: then it is required.
        category: from an answer about trained labels; ignored.
        examples: from an answer about a label that has learnt from photos; ignored.
    """

    prompt: PromptText | None = None
    # Before `threshold`, whose validator reads them.
    calibrated: StrictBool | None = Field(default=None, exclude=True)
    fit: dict[str, object] | None = Field(default=None, exclude=True)
    threshold: Annotated[_Score | None, NoBool] = None
    embedding: (
        Annotated[list[float], Field(max_length=MAX_EMBEDDING_VALUES, fail_fast=True)] | None
    ) = None
    own_embedding: StrictBool | None = Field(default=None, exclude=True)
    category: str | None = Field(default=None, exclude=True)
    examples: dict[str, object] | None = Field(default=None, exclude=True)

    @field_validator("threshold")
    @classmethod
    def _drop_shared(cls, value: float | None, info: ValidationInfo) -> float | None:
        is_of_fit = value == (info.data.get("fit") or {}).get("threshold")
        return None if info.data.get("calibrated") is False or is_of_fit else value

    @model_validator(mode="before")
    @classmethod
    def _take_bare_name(cls, value: object) -> object:
        if isinstance(value, str):
            return {"name": value}
        if not isinstance(value, dict | cls):
            raise PydanticCustomError("label", "A label should be a text or an object")
        return value

    @model_validator(mode="after")
    def _take_one_source(self) -> "OpenLabel":
        if self.prompt is not None and self.embedding is not None:
            raise PydanticCustomError(
                "two_sources", "A label takes a prompt or an embedding, not both"
            )
        if self.own_embedding and self.embedding is None:
            raise PydanticCustomError(
                "embedding_missing",
                "The label has an embedding of its own, which answers omit: send it again, or "
                "leave out own_embedding to have a text encoded",
            )
        return self


class LabelSetRecord(Record):
    """A label set as JSON, in a request or in a file; an answer of the service is valid too.

    The excluded fields are ignored. `embedding_space` is the fingerprint of the space of the given
    embeddings; None trusts them. `calibration` replaces the open head's for all labels of the set.
    """

    name: LabelSetName
    # An invalid label may have hundreds of errors: the first ends the check.
    labels: list[OpenLabel] = Field(min_length=1, fail_fast=True)
    embedding_space: str | None = Field(default=None, max_length=200)
    calibration: Calibration | None = None
    version: str | None = Field(default=None, exclude=True)
    origin: str | None = Field(default=None, exclude=True)
    read_only: bool | None = Field(default=None, exclude=True)
    num_labels: int | None = Field(default=None, exclude=True)
    num_learnt: int | None = Field(default=None, exclude=True)
    ranked: bool | None = Field(default=None, exclude=True)
    languages: list[str] | None = Field(default=None, exclude=True)
    category_counts: dict[str, int] | None = Field(default=None, exclude=True)

    def define(self) -> "Definition":
        """Returns the set as columns. Raises `InvalidLabelSet` for duplicates or mixed widths."""
        given = tuple(i for i, label in enumerate(self.labels) if label.embedding is not None)
        # One array for each label: reading millions of numbers at once would hold the GIL.
        rows = [np.array(self.labels[i].embedding, np.float64) for i in given]
        if len({len(row) for row in rows}) > 1:
            widths = " and ".join(map(str, sorted({len(row) for row in rows})[:2]))
            raise InvalidLabelSet(
                f"All embeddings must have the same number of values, not {widths}"
            )
        with np.errstate(over="ignore"):  # too large for float32: inf, refused by `check_fit`
            embeddings = np.array(rows, np.float64).astype(np.float32)
        return Definition(
            name=self.name,
            names=refuse_duplicates(tuple(label.name for label in self.labels)),
            prompts=tuple(label.prompt for label in self.labels),
            thresholds=tuple(label.threshold for label in self.labels),
            given=given,
            embeddings=embeddings.reshape(len(rows), len(rows[0]) if rows else 0),
            embedding_space=self.embedding_space,
            calibration=self.calibration,
            words=collect_words(self.labels),
        )


class LabelThreshold(Record):
    """The threshold of one label of a set, 0..1; None is the open head's."""

    name: LabelText
    threshold: Annotated[_Score | None, NoBool]


class ThresholdsRecord(Record):
    """New thresholds for some labels of a set."""

    labels: list[LabelThreshold] = Field(min_length=1)


class LabelRow(NamedTuple):
    """What a label has of its own, besides its name."""

    prompt: str | None = None
    threshold: float | None = None
    embedding: bytes | None = None  # float32 [E]


@dataclass(frozen=True, eq=False)
class Definition:
    """A label set as columns of L labels, before anything is encoded."""

    name: str
    names: tuple[str, ...]
    prompts: tuple[str | None, ...]  # encoded as they are; None: the name, with spaces for `_`
    thresholds: tuple[float | None, ...]  # 0..1; None for labels without their own
    given: tuple[int, ...] = ()  # positions of M labels that came with an embedding, ascending
    # Of these, [M, E].
    embeddings: Embeddings = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    embedding_space: str | None = None  # fingerprint; None if the author did not give it
    calibration: Calibration | None = None  # of all labels; None uses the open head's
    lessons: Lessons = field(default_factory=dict)  # of labels of the set
    encoder: str | None = None  # fingerprint of the encoder of the lessons
    words: Mapping[str, Words] = field(default_factory=dict)  # of labels that have some

    @cached_property
    def digest(self) -> str:
        """Hash of all but `embedding_space`, `lessons`, `encoder` and `words`, sha256 in hex.

        Versions before 1.2 know no words, and compare it.
        """
        columns: list[object] = [self.name, self.names, self.prompts, self.thresholds, self.given]
        if self.calibration is not None:  # so that sets without it keep their digests
            columns.append([self.calibration.scale, self.calibration.shift])
        digest = hashlib.sha256(json.dumps(columns).encode())
        digest.update(np.ascontiguousarray(self.embeddings, "<f4").data)
        return digest.hexdigest()

    @cached_property
    def rows(self) -> dict[str, LabelRow]:
        """Name -> row."""
        given = dict(zip(self.given, (row.tobytes() for row in self.embeddings), strict=True))
        vectors = map(given.get, range(len(self.names)))
        rows = map(LabelRow, self.prompts, self.thresholds, vectors)
        return dict(zip(self.names, rows, strict=True))

    def with_rows(self, rows: Mapping[str, LabelRow]) -> "Definition":
        """Returns the set with these labels in place of its own, and all lessons and words."""
        vectors = [row.embedding for row in rows.values()]
        given = tuple(position for position, vector in enumerate(vectors) if vector is not None)
        content = np.frombuffer(b"".join(filter(None, vectors)), np.float32)
        return replace(
            self,
            names=tuple(rows),
            prompts=tuple(row.prompt for row in rows.values()),
            thresholds=tuple(row.threshold for row in rows.values()),
            given=given,
            embeddings=content.reshape(len(given), self.embeddings.shape[1]),
        )

    def cut(self, count: int) -> "Definition":
        """Returns the set with its first `count` labels only, and all lessons and words."""
        columns = {n: getattr(self, n)[:count] for n in ("names", "prompts", "thresholds")}
        kept = bisect_left(self.given, count)
        return replace(self, **columns, given=self.given[:kept], embeddings=self.embeddings[:kept])

    def without(self, known: "Definition") -> "Definition":
        """Returns the set without labels of `known`.

        Raises `InvalidLabelSet` if one has another prompt, threshold, embedding or other words.
        """
        for name, row in self.rows.items():
            there = known.rows.get(name, row)
            if name in known.rows and self.words.get(name) not in (None, known.words.get(name)):
                raise InvalidLabelSet(
                    f"Label {quote(name)} of {known.name} has other words (aliases, parents or "
                    "translations): leave it out, or replace the set with --replace"
                )
            for what, old, new in zip(LabelRow._fields, there, row, strict=True):
                if new in (None, old):
                    continue
                was = "none" if old is None else f"{old!r:.80}"
                which = "" if what == "embedding" else f" ({was}, not {new!r:.80})"
                raise InvalidLabelSet(
                    f"Label {quote(name)} of {known.name} has another {what}{which}: leave it out, "
                    f"set thresholds with `ml-decoder labels threshold {known.name} {quote(name)} "
                    "VALUE`, or replace the set with --replace"
                )
        return self.with_rows({n: row for n, row in self.rows.items() if n not in known.rows})

    def texts(self, space: EmbeddingSpace) -> tuple[str, ...]:
        """Returns the text to encode for each label: its prompt, or its name in the template."""
        return tuple(
            write_prompt(space.template, name) if prompt is None else prompt
            for name, prompt in zip(self.names, self.prompts, strict=True)
        )


def refuse_duplicates(names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns `names`. Raises `InvalidLabelSet` if one is there twice."""
    first: dict[str, int] = {}
    for number, name in enumerate(names, start=1):
        if first.setdefault(name, number) != number:
            raise InvalidLabelSet(
                f"Label {quote(name)} appears twice, as labels {first[name]} and {number} of "
                f"{len(names)}: remove one"
            )
    return names


def check_size(count: int, limit: int) -> None:
    """Raises `InvalidLabelSet` if a set of `count` labels has more than `limit`."""
    if count > limit:
        raise InvalidLabelSet(f"A label set takes at most {limit} labels; this one has {count}")


def check_count(record: Mapping[str, object], limit: int) -> None:
    """Checks the size of a set as JSON, before each of its labels is checked."""
    if isinstance(labels := record.get("labels"), list):
        check_size(len(labels), limit)


def check_candidates(names: Sequence[object], limit: int) -> None:
    """Raises `InvalidLabelSet` if there are more than `limit` candidate labels, valid or not."""
    if len(names) > limit:
        raise InvalidLabelSet(
            f"A request takes at most {limit} candidate labels; this one has {len(names)}: "
            "register a label set for more"
        )


def check_fit(
    definition: Definition,
    space: EmbeddingSpace | None,
    *,
    encodes_text: bool,
    learnt: Collection[str] = (),
) -> Definition:
    """Returns the set, with zeros for missing descriptions, if it fits the model's space.

    Raises a `LabelSetError` if not, and without `encodes_text` if a label has no embedding, unless
    all are `learnt`. Without an open head, `space` is None.
    """
    if not (definition.given or encodes_text) and {*definition.names} <= {*learnt}:
        return definition
    if space is None:
        raise NoOpenHead
    if definition.embedding_space not in (None, space.fingerprint):
        raise OtherEmbeddings(str(definition.embedding_space), space.fingerprint)
    missing = space.width - definition.embeddings.shape[1]
    if 0 < missing < space.width and missing % (space.width // space.descriptions) == 0:
        embeddings = np.pad(definition.embeddings, ((0, 0), (0, missing)))
        definition = replace(definition, embeddings=embeddings)
    check_embeddings(definition.embeddings, space.width)
    if not encodes_text and len(definition.given) < len(definition.names):
        raise TextNotEncodable(next(n for n, r in definition.rows.items() if r.embedding is None))
    return definition


def check_embeddings(embeddings: NDArray[np.floating], width: int) -> None:
    """Raises `InvalidLabelSet` if E of [M, E] is not `width`, or a value or length is invalid."""
    if len(embeddings) and embeddings.shape[1:] != (width,):
        raise InvalidLabelSet(
            f"An embedding needs {width} values; these have {embeddings.shape[-1]}"
        )
    _refuse_rows(~np.isfinite(embeddings).all(axis=-1), "has a value that is not finite")
    lengths = np.sqrt(np.einsum("me,me->m", embeddings, embeddings, dtype=np.float64))
    shortest, longest = EMBEDDING_LENGTHS
    unusual = (lengths < shortest) | (lengths > longest)
    _refuse_rows(unusual, f"has a length that is not between {shortest:g} and {longest:g}")


def _refuse_rows(wrong: NDArray[np.bool_], reason: str) -> None:
    if wrong.any():
        raise InvalidLabelSet(f"Embedding {wrong.argmax() + 1} of {len(wrong)} {reason}")
