"""Answers as frozen dataclasses, each field in `docs/openapi.json`, and errors."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast, dataclass_transform


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class _Record:
    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


class NameAndVersion(_Record):
    """A model or a label set."""

    name: str
    version: str


class SetInAnswer(NameAndVersion):
    """A label set that answers."""

    ranked: bool = False  # scores are ranked, not probabilities: they are not calibrated
    num_hidden: int = 0  # labels of a registered set that a set named before it answers
    hidden: list[str] | None = None  # the first of them


class ImageSize(_Record):
    """Size in pixels after the EXIF orientation was applied."""

    width: int
    height: int


class ScoredLabel(_Record):
    """One label of an image."""

    label: str
    score: float  # 0..1
    threshold: float  # the label counts as present from this score on
    # Whether it would answer without `top_k` and `min_labels`. Older services omit it: then
    # it is whether the score reaches the threshold.
    found: bool = cast(bool, None)
    source: str  # `trained`, `zero_shot`, `fit` or `examples`
    calibrated: bool  # whether the threshold is the label's own
    category: str | None = None
    translation: str | None = None  # only with `lang`, as `parent_translations`
    parents: list[str] = field(default_factory=list, hash=False)  # nearest first; if asked
    parent_translations: list[str] = field(default_factory=list, hash=False)
    map: list[list[float]] | None = None  # [rows][columns] of 0..1; only with `explain`
    overlay: str | None = None  # the map as a data URL of a PNG; only with `explain="overlay"`

    def __post_init__(self) -> None:
        """Sets `found` if the service did not send it."""
        if cast(bool | None, self.found) is None:
            object.__setattr__(self, "found", self.score >= self.threshold)


class Timings(_Record):
    """Milliseconds of each step."""

    decode_ms: float
    queue_ms: float
    inference_ms: float
    total_ms: float


class Answer(_Record):
    """The labels of one image, best score first."""

    model: NameAndVersion
    label_set: NameAndVersion
    label_sets: list[SetInAnswer]
    image: ImageSize
    labels: list[ScoredLabel]
    embedding: list[float] | None = None  # of length 1; only with `embedding`
    # Other names and words of `lang` in the question, and the labels that they name.
    resolved: dict[str, str] = field(default_factory=dict)
    timings: Timings
    request_id: str


class NewLabel(_Record):
    """A label to register; a plain name is enough if only the name is set."""

    name: str
    prompt: str | None = None  # text to encode instead of the name
    embedding: Sequence[float] | None = None  # [E] numbers to use instead of a text
    threshold: float | None = None  # 0..1; None takes the open head's
    calibrated: bool | None = None  # False drops the threshold; see `RegisteredLabel`
    own_embedding: bool | None = None  # True requires an embedding; see `RegisteredLabel`
    category: str | None = None  # ignored; see `RegisteredLabel`
    aliases: Sequence[str] = ()
    parents: Sequence[str] = ()  # nearest first
    translations: dict[str, str] = field(default_factory=dict, hash=False)  # by language, as `de`
    examples: object = None  # ignored, as `fit`: a set that is written keeps them
    fit: object = None


class Separation(_Record):
    """How well photos tell a label from other photos: 0..8, and in words."""

    value: float
    meaning: str


class OperatingPoint(_Record):
    """A threshold with its precision and recall, all 0..1; no precision if nothing is found."""

    threshold: float
    precision: float | None
    recall: float


class LabelExamples(_Record):
    """What a label has learnt from photos."""

    positive: int  # photos that show it
    negative: int
    separation: Separation
    this_model: bool = True  # False: of another encoder, so that they count nothing here


class LabelFit(_Record):
    """What a label has learnt from an archive's tags; shares, 0..1, are of other photos."""

    photos: int
    positive: int
    negative: int  # from which the user deleted the tag
    text_ap: float | None  # average precision of the text alone
    learnt_ap: float  # average precision
    threshold: float  # if the label has none of its own
    precision: float | None  # at the threshold; None if too few photos chose it
    recall: float | None
    precise: OperatingPoint | None  # of `threshold="precise"`; None if 0.9 was not reached
    this_model: bool = True


class RegisteredLabel(_Record):
    """One label of a set."""

    name: str
    prompt: str | None  # text that was encoded instead of the name
    threshold: float  # the label counts as present from this score on
    calibrated: bool  # whether the threshold is the label's own
    # Whether it was registered with an embedding, which is not returned. Older services omit it.
    own_embedding: bool = False
    category: str | None = None  # only of trained labels
    aliases: list[str] = field(default_factory=list, hash=False)
    parents: list[str] = field(default_factory=list, hash=False)  # nearest first
    translations: dict[str, str] = field(default_factory=dict, hash=False)  # by language, as `de`
    examples: LabelExamples | None = None  # only of labels that have learnt from photos
    fit: LabelFit | None = None  # only of labels that have learnt from tags


class LabelSetSummary(_Record):
    """A label set without its labels."""

    name: str
    version: str
    origin: str
    read_only: bool
    num_labels: int
    num_learnt: int = 0  # labels that have learnt from photos
    ranked: bool = False  # scores are ranked, not probabilities: they are not calibrated
    category_counts: dict[str, int] | None = None  # of labels; None without categories
    languages: list[str] = field(default_factory=list, hash=False)  # of translations


class LabelSetList(_Record):
    """Every label set."""

    label_sets: list[LabelSetSummary]


class Calibration(_Record):
    """Scores of a set are sigmoid(scale * logit + shift)."""

    scale: float
    shift: float


class LabelSet(LabelSetSummary):
    """A label set with its labels; `if_version` takes its `version`."""

    # Of `labels calibrate`; None takes the open head's. Older services omit it.
    calibration: Calibration | None = None
    labels: list[RegisteredLabel]


class PhotoScore(_Record):
    """The score of a label on one photo; `error` has the problem of a photo that has none."""

    score: float | None = None
    error: dict[str, Any] | None = None


class LabelCalibration(_Record):
    """Of a label of a set: its present threshold, and the best one for the photos.

    Both are None if no positive photo can be used; `best` also if none reaches the wanted
    precision. The scores are in the order of the photos.
    """

    label_set: NameAndVersion
    label: str
    current: OperatingPoint | None
    best: OperatingPoint | None
    positive: list[PhotoScore]
    negative: list[PhotoScore]


class ExampleCounts(_Record):
    """Photos that a label has learnt from, and what this call did."""

    positive: int
    negative: int
    added: int
    repeated: int  # the same photo as before, or nearly so: it counts once


class LearntLabel(_Record):
    """A label that has learnt from photos, and how these score now, in their order."""

    label_set: NameAndVersion
    label: str
    examples: ExampleCounts
    separation: Separation
    threshold: float
    calibrated: bool
    positive: list[PhotoScore]
    negative: list[PhotoScore]
    advice: str | None = None  # what to do next


class Embedding(_Record):
    """A vector of length 1; `error` has the problem of a photo that has none."""

    embedding: list[float] | None = None
    error: dict[str, Any] | None = None


class Embeddings(_Record):
    """Embeddings of photos and texts, in their order; compare those of one `encoder` only."""

    model: NameAndVersion
    encoder: str
    width: int | None  # None without a usable photo
    images: list[Embedding]
    texts: list[Embedding]


class Info(_Record):
    """The model card; parts that differ between models are plain JSON values."""

    model: NameAndVersion
    license: str
    provenance: dict[str, Any]
    input: dict[str, Any]
    head: dict[str, Any] | None
    open_head: dict[str, Any] | None
    labels: list[dict[str, Any]]
    background: dict[str, Any] | None = None  # photos; None: labels cannot learn from photos
    metrics: list[dict[str, Any]]
    runtime: dict[str, Any]


class ClientError(Exception):
    """Base of the client's errors; the message is one line."""


class ServiceUnreachable(ClientError):
    """No response, after all retries."""


class UnreadableAnswer(ClientError):
    """A success status with an unexpected body: another service listens at this address."""


class ServiceProblem(ClientError):
    """An error response, in the service's shape (RFC 9457) or another.

    `code` is a stable name, `queue_full` for example, and empty if a proxy answered. `errors` has
    each invalid value with `where`, `name` and `reason`, `request_id` is in the service's log.
    """

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        # Fields of another type are ignored.
        def read(name: str) -> str | None:
            value = body.get(name)
            return value if isinstance(value, str) else None

        self._body = body
        self.status = status
        self.code = read("code") or ""
        hint = ": raise its limit (nginx: client_max_body_size 20m)" * (status == 413)
        self.title = read("title") or f"HTTP {status} from a proxy or another service{hint}"
        self.detail = read("detail")
        errors = body.get("errors")
        self.errors: list[dict[str, str]] = [
            value
            for value in (errors if isinstance(errors, list) else ())
            if isinstance(value, dict)
            and all(isinstance(value.get(name), str) for name in ("where", "name", "reason"))
        ]
        self.request_id = read("request_id")
        values = "; ".join(f"{value['name']}: {value['reason']}" for value in self.errors)
        super().__init__(": ".join(filter(None, (self.title, values or self.detail))))

    def __reduce__(self) -> tuple[Any, ...]:
        """Makes it picklable: otherwise a pool of processes hangs."""
        return type(self), (self.status, self._body)
