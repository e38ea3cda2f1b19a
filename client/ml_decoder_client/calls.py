"""The calls of both clients: the HTTP request of each, and how to read its response.

The functions are the methods of `Client` and `AsyncClient`, with their signatures and docstrings.
"""

import base64
import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, Generic, Literal, Self, TypedDict, Unpack
from urllib.parse import quote

import httpx2

from ml_decoder_client.answers import (
    Answer,
    Calibration,
    Embeddings,
    Info,
    LabelCalibration,
    LabelSet,
    LabelSetList,
    LabelSetSummary,
    LearntLabel,
    NewLabel,
    RegisteredLabel,
    ServiceProblem,
    UnreadableAnswer,
)
from ml_decoder_client.reading import ResultT, read_json

Photo = bytes | str | os.PathLike[str]  # the content of an image file, or its path
# A name, or a label with more fields; a mapping has the keys of `NewLabel`.
LabelToWrite = str | NewLabel | RegisteredLabel | Mapping[str, Any]
_FormFile = tuple[str, tuple[str, bytes]]  # field, and name and content of a file

# The service reads at most 2,048 text fields of a form; the rest are for single values.
_MAX_FORM_ENTRIES = 2000
# Most photos and bytes of a request that teaches a label.
_MAX_EXAMPLES = 200
_MAX_BODY_BYTES = 20 * 2**20
_PART_BYTES = 200  # more than the headers of a photo in a form
_GONE = frozenset({"label_set_not_found", "no_examples"})
_LISTS = frozenset({"include", "exclude", "category", "parent", "label_set", "candidate_labels"})
# Left out if they are empty: older services refuse unknown fields.
_WORDS = frozenset({"aliases", "parents", "translations"})
# The service encodes the texts of a label set before it answers: 4 ms each on two cores.
_SECONDS_PER_LABEL = 0.02
# Calibration, learning and `embed` run the model on all photos before they answer.
_SECONDS_PER_PHOTO = 0.5


class Question(TypedDict, total=False):
    """The parameters of `/predict`, all optional."""

    top_k: int  # most labels to return; without `threshold`, exactly the k best
    min_labels: int  # all found labels, and the best others up to this number
    # 0..1 for every label, or each label's own: default, of best F1, finding three quarters, or
    # with nine of ten answers right
    threshold: float | Literal["calibrated", "balanced", "recall", "precise"]
    include: Sequence[str]  # only these labels
    exclude: Sequence[str]  # all labels but these
    category: Sequence[str]  # only labels of these
    parent: Sequence[str]  # only labels below these parents, or of these names
    label_set: Sequence[str]
    candidate_labels: Sequence[str]  # for this request alone
    min_version: int  # of the label sets
    explain: bool | Literal["overlay"]  # adds an attention map, or a picture of it too, to each
    embedding: bool  # adds the photo's embedding
    lang: str  # of translations, and of names in the question, as `de`
    parents: bool  # adds each label's parents


@dataclass(frozen=True)
class Call(Generic[ResultT]):
    """One request and how to read its response."""

    method: str
    path: str  # relative to the service's address
    read: Callable[[httpx2.Response], ResultT]  # of a success
    options: dict[str, Any] = field(default_factory=dict)  # of `httpx2.Client.build_request`
    extra_seconds: float = 0.0  # added to the client's timeout

    def __iter__(self) -> Iterator[Self]:
        """Yields itself: some methods send several calls."""
        yield self

    def read_result(self, response: httpx2.Response, *, maybe_done: bool) -> ResultT:
        """Returns the result; `maybe_done`: whether an earlier attempt may have succeeded."""
        if not response.is_success:
            problem = ServiceProblem(response.status_code, _read_object(response))
            is_gone = self.method == "DELETE" and problem.code in _GONE
            if not (is_gone and maybe_done):
                raise problem
        try:
            return self.read(response)
        except ValueError as error:
            raise UnreadableAnswer(f"unexpected response of {response.url}: {error}") from error


def predict(photo: Photo, **question: Unpack[Question]) -> Call[Answer]:
    """Labels one photo, or raises OSError if its file cannot be read."""
    return Call("POST", "predict", _read(Answer), _write_question(_read_photo(photo), question))


def info() -> Call[Info]:
    """Returns the model card."""
    return Call("GET", "info", _read(Info))


def list_label_sets() -> Call[list[LabelSetSummary]]:
    """Returns every label set, without its labels."""
    read = _read(LabelSetList)
    return Call("GET", "labels", lambda response: read(response).label_sets)


def read_label_set(name: str) -> Call[LabelSet]:
    """Returns one label set with its labels."""
    return Call("GET", _set_path(name), _read(LabelSet))


def register_label_set(
    name: str, labels: Iterable[LabelToWrite], *, embedding_space: str | None = None
) -> Call[LabelSet]:
    """Registers a label set of at least one label.

    409 if another set has this name, or if `embedding_space`, the fingerprint of the embeddings'
    space, is not the model's.
    """
    return _write_set("POST", "labels", {"name": name, **_set_body(labels, embedding_space)})


def replace_label_set(
    name: str,
    labels: Iterable[LabelToWrite],
    *,
    embedding_space: str | None = None,
    calibration: Calibration | None = None,
    if_version: str | None = None,
) -> Call[LabelSet]:
    """Registers or replaces a label set; with `if_version`, only that version.

    `calibration` is that of a set that was read: without it, `labels calibrate` is undone.
    """
    body = _set_body(labels, embedding_space)
    if calibration is not None:
        body["calibration"] = asdict(calibration)
    return _write_set("PUT", _set_path(name), body, if_version)


def change_thresholds(
    name: str, thresholds: Mapping[str, float | None], *, if_version: str | None = None
) -> Call[LabelSet]:
    """Changes thresholds, 0..1; None takes the open head's. All else of the set stays.

    With `if_version`, only that version is changed.
    """
    changes = [{"name": label, "threshold": value} for label, value in thresholds.items()]
    return _write_set("PATCH", _set_path(name), {"labels": changes}, if_version)


def calibrate_label(
    name: str,
    label: str,
    positive: Iterable[Photo],
    negative: Iterable[Photo] = (),
    *,
    precision_target: float | None = None,
) -> Call[LabelCalibration]:
    """Finds the threshold of a label from photos that show it and photos that do not.

    The best has the best F1, or is the lowest that reaches `precision_target` (0..1) with 95 %
    confidence; `change_thresholds` keeps it. At most 200 photos, in one request.
    """
    params: dict[str, Any] = {"label": label}
    if precision_target is not None:
        params["precision_target"] = precision_target
    files = list(_read_groups(positive=positive, negative=negative))
    return _send_photos(f"{_set_path(name)}/calibrate", LabelCalibration, params, files)


def learn_label(
    label_set: str,
    label: str,
    positive: Iterable[Photo] = (),
    negative: Iterable[Photo] = (),
    *,
    replace: bool = False,
) -> Iterator[Call[LearntLabel]]:
    """Teaches a label from photos that show it, and photos that do not; adds label and set.

    More photos add up, and a photo counts once however often it is sent. `replace` forgets the
    earlier ones. More than 200 photos or 20 MiB go in several requests, each of which is kept; the
    result is the last response, whose `added`, `repeated` and scores are of its own photos.
    """
    path = f"{_set_path(label_set)}/examples"
    params = {"label": label, **({"replace": "true"} if replace else {})}
    files, size = list[_FormFile](), 0
    for file in _read_groups(positive=positive, negative=negative):
        added = _PART_BYTES + len(file[1][1])
        if files and (len(files) == _MAX_EXAMPLES or size + added > _MAX_BODY_BYTES):
            yield _send_photos(path, LearntLabel, params, files)
            params, files, size = {"label": label}, [], 0
        files.append(file)
        size += added
    if not files:
        raise ValueError("learn_label needs at least one photo, positive or negative")
    yield _send_photos(path, LearntLabel, params, files)


def forget_examples(label_set: str, label: str) -> Call[None]:
    """Removes all that a label has learnt from photos, examples and tags; its text stays."""
    options = {"params": {"label": label}}
    return Call("DELETE", f"{_set_path(label_set)}/examples", lambda _: None, options)


def embed(photos: Iterable[Photo] = (), texts: Iterable[str] = ()) -> Call[Embeddings]:
    """Returns the embeddings of photos and, from CLIP and SigLIP, of texts; in one request."""
    if isinstance(texts, str):  # each letter would be a text
        raise TypeError("texts must be a list of texts, not one")
    files, strings = list(_read_groups(images=photos)), list(texts)
    fields = {"texts": strings}
    options = {"files": files, "data": fields} if files else {"json": fields}
    extra = _SECONDS_PER_PHOTO * len(files) + _SECONDS_PER_LABEL * len(strings)
    return Call("POST", "embed", _read(Embeddings), options, extra)


def delete_label_set(name: str, *, if_version: str | None = None) -> Call[None]:
    """Deletes a label set; with `if_version`, only that version."""
    return Call("DELETE", _set_path(name), lambda _: None, {"headers": _if_match(if_version)})


def check_photos(photos: Iterable[Photo], at_once: int = 1) -> None:
    if at_once < 1:
        raise ValueError(f"at_once must be at least 1; it is {at_once}")
    if isinstance(photos, str | bytes | os.PathLike):  # each letter would be a path
        raise TypeError("photos must be a list of photos, not one")


def _read_groups(**groups: Iterable[Photo]) -> Iterator[_FormFile]:
    """Yields the photos of each field of a form; reads each as it is needed."""
    for photos in groups.values():
        check_photos(photos)
    for field_name, photos in groups.items():
        for photo in photos:
            yield field_name, ("photo", _read_photo(photo))


def _send_photos(
    path: str, kind: type[ResultT], params: Mapping[str, Any], files: Sequence[_FormFile]
) -> Call[ResultT]:
    options = {"params": params, "files": files}
    return Call("POST", path, _read(kind), options, _SECONDS_PER_PHOTO * len(files))


def _read(kind: type[ResultT]) -> Callable[[httpx2.Response], ResultT]:
    return lambda response: read_json(kind, _parse(response))


def _parse(response: httpx2.Response) -> object:
    try:
        return response.json()
    except (ValueError, RecursionError) as error:
        raise ValueError("not JSON") from error


def _read_object(response: httpx2.Response) -> dict[str, Any]:
    try:
        body = _parse(response)
    except ValueError:  # a proxy's body may be anything
        return {}
    return body if isinstance(body, dict) else {}


def _read_photo(photo: Photo) -> bytes:
    if isinstance(photo, bytes):
        return photo
    try:
        return Path(photo).read_bytes()
    except ValueError as error:  # NUL, or characters that no file name can have
        raise OSError(errno.EINVAL, str(error), photo) from error


def _write_question(data: bytes, question: Question) -> dict[str, Any]:
    fields = {name: _write_value(name, value) for name, value in question.items()}
    lists = [value for value in fields.values() if isinstance(value, list)]
    # The service separates a text that is alone in a form at its commas.
    has_comma = any(len(names) == 1 and "," in names[0] for names in lists)
    if has_comma or sum(map(len, lists)) > _MAX_FORM_ENTRIES:
        return {"json": {"image": base64.b64encode(data).decode(), **fields}}
    # Not the file's name: a header cannot carry every name, and the service ignores it.
    return {"files": {"image": ("image", data)}, "data": fields}


def _write_value(name: str, value: object) -> str | list[str]:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and name in _LISTS:  # as in a query string
        return [part for text in value.split(",") if (part := text.strip())]
    if isinstance(value, str | Real):  # numpy's numbers are Real
        return str(value)
    # No iterators: `predict_many` sends the same question with every photo.
    if isinstance(value, Collection) and not isinstance(value, bytes):
        return [str(item) for item in value]
    raise TypeError(f"{name} must be a number, a text or a list; it is a {type(value).__name__}")


def _set_path(name: str) -> str:
    if name in ("", ".", ".."):  # URLs drop these, so the request would reach another route
        raise ValueError(f"invalid label set name {name!r}")
    return f"labels/{quote(name, safe='')}"


def _write_set(
    method: str, path: str, body: dict[str, Any], version: str | None = None
) -> Call[LabelSet]:
    options = {"json": body, "headers": _if_match(version)}
    return Call(method, path, _read(LabelSet), options, _SECONDS_PER_LABEL * len(body["labels"]))


def _set_body(labels: Iterable[LabelToWrite], embedding_space: str | None) -> dict[str, Any]:
    if isinstance(labels, str | Mapping):  # each letter or key would become a label
        raise TypeError("labels must be a list of labels, not one name or mapping")
    space = {} if embedding_space is None else {"embedding_space": embedding_space}
    return {"labels": [_write_label(label) for label in labels], **space}


def _write_label(label: LabelToWrite) -> str | dict[str, Any]:
    match label:
        case str():
            return label
        case Mapping():
            return _write_label(NewLabel(**label))
        case NewLabel() | RegisteredLabel():
            pairs = ((n, v) for n, v in vars(label).items() if n not in _WORDS or v)
            fields = {name: value for name, value in pairs if value is not None}
            fields.pop("examples", None)  # the service keeps what a label has learnt
            fit = fields.pop("fit", {})
            learnt = fit if isinstance(fit, Mapping) else vars(fit)
            if "threshold" in fields and fields["threshold"] == learnt.get("threshold"):
                del fields["threshold"]  # it is not the label's own
            if "embedding" in fields:  # it may be an array
                fields["embedding"] = [float(number) for number in fields["embedding"]]
            return fields
    raise TypeError(f"a label must be a name, an object or a mapping, not a {type(label).__name__}")


def _if_match(version: str | None) -> dict[str, str]:
    return {} if version is None else {"If-Match": f'"{version}"'}
