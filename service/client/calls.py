"""Calls: what is sent for each thing that a client can want.

In: arguments of the client's methods. Out: a `Call`, which knows its request and how to read the
answer. Next: `blocking.py` and `awaiting.py`, which send it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypedDict, TypeVar
from urllib.parse import quote

import httpx
from httpx_retries import Retry

from service.client.answers import Answer, Info, LabelSet, LabelSetSummary, NewLabel
from service.client.errors import ServiceProblem

ResultT = TypeVar("ResultT")

Photo = bytes | str | os.PathLike[str]
"""The content of an image file, or the path of one."""

# A request that was refused, or that a broken connection left without an answer. A time-out is
# not among them: who was too slow for one request is not helped by a second.
_RETRIED_STATUSES = (429, 502, 503)
_RETRIED_ERRORS = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.ReadError,
    httpx.RemoteProtocolError,
    httpx.WriteError,
)
_FIRST_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 30.0


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
    """

    method: str
    path: str
    read: Callable[[httpx.Response], ResultT]
    options: dict[str, Any] = field(default_factory=dict)

    def finish(self, response: httpx.Response) -> ResultT:
        """Returns the result of the answer.

        Raises:
            ServiceProblem: it is an error.
        """
        if response.is_success:
            return self.read(response)
        try:
            body = response.json()
        except ValueError:  # a proxy in front of the service may answer with anything
            body = None
        raise ServiceProblem(response.status_code, body if isinstance(body, dict) else {})


def make_retry(retries: int) -> Retry:
    """Returns the retries of a client: after `Retry-After`, else after doubling waits.

    Every call may be sent twice: a set that is registered once more is no error.
    """
    return Retry(
        total=retries,
        allowed_methods=("GET", "POST", "PUT", "DELETE"),
        status_forcelist=_RETRIED_STATUSES,
        retry_on_exceptions=_RETRIED_ERRORS,
        backoff_factor=_FIRST_WAIT_SECONDS,
        max_backoff_wait=_LONGEST_WAIT_SECONDS,
    )


def make_headers(api_key: str | None) -> dict[str, str]:
    """Returns the headers of every request."""
    return {} if api_key is None else {"Authorization": f"Bearer {api_key}"}


def call_predict(photo: Photo, question: Question) -> Call[Answer]:
    """Labels of one photo.

    Raises:
        OSError: the file cannot be read.
    """
    name, data = _read_photo(photo)
    fields = {name: _write_value(value) for name, value in question.items()}
    return Call(
        "POST", "predict", _read(Answer), {"files": {"image": (name, data)}, "data": fields}
    )


def call_info() -> Call[Info]:
    """The model card."""
    return Call("GET", "info", _read(Info))


def call_list() -> Call[list[LabelSetSummary]]:
    """Every label set."""
    return Call(
        "GET",
        "labels",
        lambda response: [
            LabelSetSummary.model_validate(found) for found in response.json()["label_sets"]
        ],
    )


def call_read(name: str) -> Call[LabelSet]:
    """One label set."""
    return Call("GET", _set_path(name), _read(LabelSet))


def call_register(
    name: str, labels: Sequence[str | NewLabel], embedding_space: str | None
) -> Call[LabelSet]:
    """A new label set."""
    body = {"name": name, **_set_body(labels, embedding_space)}
    return Call("POST", "labels", _read(LabelSet), {"json": body})


def call_replace(
    name: str,
    labels: Sequence[str | NewLabel],
    embedding_space: str | None,
    if_version: str | None,
) -> Call[LabelSet]:
    """A label set in place of the one of its name."""
    options = {"json": _set_body(labels, embedding_space), "headers": _demand(if_version)}
    return Call("PUT", _set_path(name), _read(LabelSet), options)


def call_delete(name: str, if_version: str | None) -> Call[None]:
    """A label set that goes away."""
    return Call("DELETE", _set_path(name), _ignore, {"headers": _demand(if_version)})


def _read(model: type[Any]) -> Callable[[httpx.Response], Any]:
    return lambda response: model.model_validate_json(response.content)


def _ignore(_response: httpx.Response) -> None:
    return None


def _read_photo(photo: Photo) -> tuple[str, bytes]:
    if isinstance(photo, bytes):
        return "image", photo
    path = Path(photo)
    return path.name, path.read_bytes()


def _write_value(value: object) -> str | list[str]:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    assert isinstance(value, Sequence)
    return [str(item) for item in value]


def _set_path(name: str) -> str:
    return f"labels/{quote(name, safe='')}"


def _set_body(labels: Sequence[str | NewLabel], embedding_space: str | None) -> dict[str, Any]:
    listed = [
        label if isinstance(label, str) else label.model_dump(exclude_none=True) for label in labels
    ]
    space = {} if embedding_space is None else {"embedding_space": embedding_space}
    return {"labels": listed, **space}


def _demand(version: str | None) -> dict[str, str]:
    return {} if version is None else {"If-Match": f'"{version}"'}
