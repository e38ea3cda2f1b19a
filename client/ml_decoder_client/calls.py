"""Calls: what is sent for each thing that a client can want.

In: arguments of the client's methods. Out: a `Call`, which knows its request and how to read the
answer. Next: `blocking.py` and `awaiting.py`, which send it.
"""

from __future__ import annotations

import base64
import errno
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, Generic, Literal, TypedDict, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from ml_decoder_client.answers import (
    Answer,
    Info,
    LabelSet,
    LabelSetList,
    LabelSetSummary,
    NewLabel,
    RegisteredLabel,
)
from ml_decoder_client.errors import ServiceProblem, UnreadableAnswer
from ml_decoder_client.tries import was_in_doubt

ModelT = TypeVar("ModelT", bound=BaseModel)
ResultT = TypeVar("ResultT")

Photo = bytes | str | os.PathLike[str]
"""The content of an image file, or the path of one."""
LabelToWrite = str | NewLabel | RegisteredLabel | Mapping[str, Any]
"""A label's name, or all that there is to say of it."""

# The service takes 2,048 text fields in a form, of which a few are no lists; JSON may hold more.
_MOST_ENTRIES = 2000
# Of these JSON takes a list alone, where one name may be given.
_LISTS = frozenset({"include", "exclude", "label_set", "candidate_labels"})
# The service encodes the texts of a label set before it answers, in 4 ms each on two cores.
_SECONDS_A_LABEL = 0.02


class Question(TypedDict, total=False):
    """What to ask of an image: the parameters of `/predict`, all of them optional.

    Attributes:
        top_k: most labels to answer with; alone, exactly the k best.
        threshold: a score 0..1 for every label, or `calibrated` for each label's own.
        include: names to choose from.
        exclude: names to leave out.
        label_set: names of label sets to answer from.
        candidate_labels: labels for this request alone.
        min_version: answer from label sets of this version or later.
        explain: add to each label a map of where the model looked; `overlay` a picture as well.
    """

    top_k: int
    threshold: float | Literal["calibrated"]
    include: Sequence[str]
    exclude: Sequence[str]
    label_set: Sequence[str]
    candidate_labels: Sequence[str]
    min_version: int
    explain: bool | Literal["overlay"]


@dataclass(frozen=True)
class Call(Generic[ResultT]):
    """One request and how to read its answer.

    Attributes:
        method: HTTP method.
        path: below the service's address.
        read: makes the result of a good answer.
        options: keyword arguments of `httpx.Client.request`.
        more_seconds: how long the service may work on it beyond the client's time-out.
    """

    method: str
    path: str
    read: Callable[[httpx.Response], ResultT]
    options: dict[str, Any] = field(default_factory=dict)
    more_seconds: float = 0.0

    @property
    def is_conditional(self) -> bool:
        """Whether it demands a version of a set, which is another one once it is done."""
        return "If-Match" in self.options.get("headers", {})

    def finish(self, response: httpx.Response) -> ResultT:
        """Returns the result of the answer.

        Raises:
            ServiceProblem: it is an error.
            UnreadableAnswer: it is none of the service's.
        """
        if not (response.is_success or self._was_done_before(response)):
            raise ServiceProblem(response.status_code, _read_object(response))
        try:
            return self.read(response)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            reason = ": ".join(filter(None, (place, first["msg"])))
            raise UnreadableAnswer(f"{response.url} answers something else: {reason}") from error

    def _was_done_before(self, response: httpx.Response) -> bool:
        # What a deletion no longer finds may have been deleted by the try whose answer was lost.
        if self.method != "DELETE" or not was_in_doubt(response):
            return False
        return _read_object(response).get("code") == "label_set_not_found"


def check_many(photos: Iterable[Photo], at_once: int) -> None:
    """Checks the arguments of `predict_many`.

    Raises:
        TypeError: there is one photo in place of many.
        ValueError: `at_once` is less than 1.
    """
    if isinstance(photos, str | bytes | os.PathLike):  # else each letter would be a path
        raise TypeError("photos are a list of photos, not one")
    if at_once < 1:
        raise ValueError("at_once must be at least 1")


def call_predict(photo: Photo, question: Question) -> Call[Answer]:
    """Labels of one photo.

    Raises:
        OSError: the file cannot be read.
    """
    options = _write_question(_read_photo(photo), question)
    return Call("POST", "predict", _read(Answer), options)


def call_info() -> Call[Info]:
    """The model card."""
    return Call("GET", "info", _read(Info))


def call_list() -> Call[list[LabelSetSummary]]:
    """Every label set."""
    read = _read(LabelSetList)
    return Call("GET", "labels", lambda response: read(response).label_sets)


def call_read(name: str) -> Call[LabelSet]:
    """One label set."""
    return Call("GET", _set_path(name), _read(LabelSet))


def call_register(
    name: str, labels: Iterable[LabelToWrite], embedding_space: str | None
) -> Call[LabelSet]:
    """A new label set."""
    body = _set_body(labels, embedding_space)
    options = {"json": {"name": name, **body}}
    return Call("POST", "labels", _read(LabelSet), options, _seconds_for(body))


def call_replace(
    name: str,
    labels: Iterable[LabelToWrite],
    embedding_space: str | None,
    if_version: str | None,
) -> Call[LabelSet]:
    """A label set in place of the one of its name."""
    body = _set_body(labels, embedding_space)
    options = {"json": body, "headers": _demand(if_version)}
    return Call("PUT", _set_path(name), _read(LabelSet), options, _seconds_for(body))


def call_delete(name: str, if_version: str | None) -> Call[None]:
    """A label set that goes away."""
    return Call("DELETE", _set_path(name), lambda _: None, {"headers": _demand(if_version)})


def _read(model: type[ModelT]) -> Callable[[httpx.Response], ModelT]:
    return lambda response: model.model_validate_json(response.content)


def _read_object(response: httpx.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except (ValueError, RecursionError):  # a proxy before the service may answer with anything
        return {}
    return body if isinstance(body, dict) else {}


def _read_photo(photo: Photo) -> bytes:
    if isinstance(photo, bytes):
        return photo
    try:
        return Path(photo).read_bytes()
    except ValueError as error:  # a NUL, or letters that no file name can have
        raise OSError(errno.EINVAL, str(error), photo) from error


def _write_question(data: bytes, question: Question) -> dict[str, Any]:
    fields = {name: _write_value(name, value) for name, value in question.items()}
    if sum(len(value) for value in fields.values() if isinstance(value, list)) > _MOST_ENTRIES:
        return {"json": {"image": base64.b64encode(data).decode(), **fields}}
    # A name of our own: the file's may be one that no header can hold, and nobody reads it.
    return {"files": {"image": ("image", data)}, "data": fields}


def _write_value(name: str, value: object) -> str | list[str]:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and name in _LISTS:
        return [value]
    if isinstance(value, str | Real):  # Real are numpy's numbers too
        return str(value)
    # Not what can be gone through once: `predict_many` asks the same of every photo.
    if isinstance(value, Collection) and not isinstance(value, bytes):
        return [str(item) for item in value]
    raise TypeError(f"{name} cannot be a {type(value).__name__}")


def _set_path(name: str) -> str:
    if name in ("", ".", ".."):  # what URLs drop from a path: the call would go elsewhere
        raise ValueError(f"{name!r} is no name of a label set")
    return f"labels/{quote(name, safe='')}"


def _set_body(labels: Iterable[LabelToWrite], embedding_space: str | None) -> dict[str, Any]:
    if isinstance(labels, str | Mapping):  # else each letter, or each key, would be a label
        raise TypeError("labels are a list of names, not one name or mapping")
    listed = [_write_label(label) for label in labels]
    space = {} if embedding_space is None else {"embedding_space": embedding_space}
    return {"labels": listed, **space}


def _seconds_for(body: dict[str, Any]) -> float:
    return _SECONDS_A_LABEL * len(body["labels"])


def _write_label(label: LabelToWrite) -> str | dict[str, Any]:
    match label:
        case str():
            return label
        case NewLabel() | RegisteredLabel():
            return label.model_dump(exclude_none=True)
        case Mapping():
            return _write_label(NewLabel.model_validate(label))
    raise TypeError(f"a label is a name, an object or a mapping, not a {type(label).__name__}")


def _demand(version: str | None) -> dict[str, str]:
    return {} if version is None else {"If-Match": f'"{version}"'}
