"""A model's files, in a folder or on the Hugging Face hub (`hf-hub:owner/name`)."""

import errno
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import constants, errors, file_download
from huggingface_hub.file_download import HfFileMetadata, hf_hub_url
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    WeakFileLock,
    build_hf_headers,
    http_stream_backoff,
    logging,
)
from pydantic import TypeAdapter, ValidationError

from models.checkpoints.description import CheckpointError
from models.checkpoints.formats import HUB, is_on_hub, is_repository

CONFIG = "config.json"
_OF_TIMM = {"architecture", "pretrained_cfg"}  # one of them is in each `CONFIG` of timm
_HASH = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
_WHOLE = 200  # the status of an answer without a range
# By the status of a hub's answer.
_STEPS = {401: "set a valid HF_TOKEN", 403: "set another HF_TOKEN", 404: "check the name"}

_json_object = TypeAdapter(dict[str, Any])


class Remote(NamedTuple):
    """A file that a repository has."""

    size: int  # bytes
    etag: str  # mostly its SHA-256, of small files the SHA-1 of a git blob; of a folder's, empty
    cached: bool  # `fetch` downloads nothing


def read_json(checkpoint: Path | str, name: str) -> dict[str, Any]:
    """Returns the object in a file of a folder or a repository, or next to a file of weights.

    It is empty without the file, and for a `CONFIG` next to a file that is not timm's.
    """
    path = fetch(checkpoint, name)
    unrelated = name == CONFIG and not is_repository(checkpoint)
    try:
        content = {} if path is None else _json_object.validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        if unrelated:
            return {}
        raise CheckpointError(f"{checkpoint} has a {name} that is damaged") from error
    return {} if unrelated and not content.keys() & _OF_TIMM else content


def fetch(checkpoint: Path | str, name: str) -> Path | None:
    """Returns a file of a folder or a repository, or next to a file; None if there is none.

    If HF_HUB_OFFLINE is set, files outside the cache are missing. Raises CheckpointError with the
    next step if the hub does not answer or refuses, or if a file has another hash than it says.
    """
    if not is_on_hub(checkpoint):
        given = Path(checkpoint)
        path = (given if given.is_dir() else given.parent) / name
        return path if path.is_file() else None
    with _explain(checkpoint, name), suppress(errors.OfflineModeIsEnabled):
        return _download(_repository(checkpoint), name)
    return None


def fetch_needed(checkpoint: Path | str, *names: str) -> Path:
    """Returns the first file that there is, as `fetch` does; raises CheckpointError if none is."""
    path = next(filter(None, (fetch(checkpoint, name) for name in names)), None)
    if path is None:
        if constants.HF_HUB_OFFLINE:
            ask(checkpoint, names[0])  # raises
        raise CheckpointError(f"{checkpoint} has no {' or '.join(names[:2])}")
    return path


def ask(checkpoint: Path | str, name: str) -> Remote | None:
    """Describes a file without a download; None if there is none. Raises as `fetch_needed`."""
    found = _look(checkpoint, name)
    if isinstance(found, HfFileMetadata):
        blob = _find_blob(_repository(checkpoint), str(found.etag))
        return Remote(found.size or 0, blob.name, blob.exists())
    etag = found.resolve().name if found and is_on_hub(checkpoint) else ""
    return None if found is None else Remote(found.stat().st_size, etag, cached=True)


def read_range(checkpoint: Path | str, name: str, start: int, size: int) -> bytes:
    """Returns `size` bytes of a file from `start`; raises CheckpointError, also if it has fewer."""
    data, found = b"", _look(checkpoint, name)
    with _explain(checkpoint, name):
        if isinstance(found, Path):
            with found.open("rb") as file:
                file.seek(start)
                data = file.read(size)
        elif found is not None:
            part = {"Range": f"bytes={start}-{start + size - 1}", "Accept-Encoding": "identity"}
            headers, url = build_hf_headers() | part, hf_hub_url(_repository(checkpoint), name)
            limit = constants.HF_HUB_DOWNLOAD_TIMEOUT
            with http_stream_backoff("GET", url, headers=headers, timeout=limit) as response:
                skip = start if response.status_code == _WHOLE else 0  # it ignored the range
                sent = chain.from_iterable(response.raise_for_status().iter_bytes())
                data = bytes(islice(sent, skip, skip + size))
    if len(data) < size:
        raise CheckpointError(f"{checkpoint} has no {name}, or one that is cut off")
    return data


def _look(checkpoint: Path | str, name: str) -> HfFileMetadata | Path | None:
    if is_on_hub(checkpoint):
        with _explain(checkpoint, name):
            return _ask(_repository(checkpoint), name)
    return fetch(checkpoint, name)


def _repository(checkpoint: Path | str) -> str:
    return str(checkpoint).removeprefix(HUB)


@contextmanager
def _explain(checkpoint: Path | str, name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the library raises the errors of every layer below it
        why = explain_download(error, name)
        raise CheckpointError(f"{checkpoint} cannot be fetched: {why}") from error


def explain_download(error: BaseException, name: str) -> str:
    """Returns why huggingface_hub could not download a file, and what to do."""
    hub, reason = constants.ENDPOINT, " ".join(f"{type(error).__name__} {error}".split())
    why = f"the connection failed ({reason:.200}): repeat the command, or check HF_ENDPOINT"
    match error:
        case errors.LocalEntryNotFoundError(__cause__=Exception() as cause):
            return explain_download(cause, name)
        case errors.OfflineModeIsEnabled():
            why = f"HF_HUB_OFFLINE is set, and {name} is not in the cache"
        case errors.GatedRepoError():
            page = str(error.response.url).partition("/resolve/")[0]
            why = f"accept its licence on {page}, and set HF_TOKEN"
        case errors.RepositoryNotFoundError():
            why = "there is no such repository, or it is private: check its name, or set HF_TOKEN"
        case errors.HfHubHTTPError(response=response):
            step = _STEPS.get(response.status_code, "repeat the command later")
            why = f"{hub} answered {response.status_code}: {step}"
        case errors.FileMetadataError():
            why = f"{hub} did not answer as a hub does: log in to the network, or check the proxy"
        case OSError(strerror=str(reason)) | ValueError(args=[str(reason)]):
            why = reason  # of a full disk; of an invalid name
    return why


def _ask(repository: str, name: str) -> HfFileMetadata | Path | None:
    """Asks the hub for a file's size and hash; returns the cached file if it does not answer."""
    logging.set_verbosity_error()  # it would log each of its retries
    url = hf_hub_url(repository, name)
    path = file_download.try_to_load_from_cache(repository, name, constants.HF_HUB_CACHE)
    cached = Path(path) if isinstance(path, str) else None
    try:
        remote = file_download.get_hf_file_metadata(url, retry_on_errors=cached is None)
        if not (_HASH.fullmatch(remote.etag or "") and _HASH.fullmatch(remote.commit_hash or "")):
            raise errors.FileMetadataError(url)
    except errors.EntryNotFoundError:
        return None
    except Exception:
        if cached is None:
            raise
        return cached
    return remote


def _find_blob(repository: str, etag: str) -> Path:
    folder = file_download.repo_folder_name(repo_id=repository, repo_type="model")
    return Path(constants.HF_HUB_CACHE, folder, "blobs", etag)


def _download(repository: str, name: str) -> Path | None:
    """Downloads a file into the cache of `hf_hub_download`, from where the last call stopped.

    `hf_hub_download` (2.4.0) deletes the part that it has when it fails, so a repeated command
    would start again; and it compares a file's size but not its hash.
    """
    remote = _ask(repository, name)
    if not isinstance(remote, HfFileMetadata):
        return remote
    path = _find_blob(repository, str(remote.etag))
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(path.with_suffix(".lock")):  # of a download at the same time
            _complete(path, remote, hf_hub_url(repository, name), name)
    return Path(file_download.hf_hub_download(repository, name))


def _complete(path: Path, remote: HfFileMetadata, url: str, name: str) -> None:
    if path.exists():
        return
    part = path.with_suffix(".part")
    with part.open("ab") as file:
        file_download.http_get(
            *(url, file),
            resume_size=file.seek(0, os.SEEK_END),
            headers=build_hf_headers(),
            expected_size=remote.size,
            displayed_filename=name,
        )
    if _hash(part, path.name) != path.name:
        part.unlink()
        raise OSError(errno.EIO, f"{name} was damaged by the download: repeat the command")
    part.replace(path)


def _hash(path: Path, etag: str) -> str:
    digest = hashlib.sha256()
    if len(etag) < digest.digest_size * 2:  # git's
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: digest).hexdigest()
