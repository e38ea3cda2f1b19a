"""Writes an export as a bundle, completely or not at all; replaces only another bundle."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from service.bundle.card import Label, ModelCard, Precision
from service.bundle.manifest import (
    BACKGROUND_FILE,
    LABELS_FILE,
    MANIFEST_FILE,
    SCHEMA_VERSION,
    SET_PREFIX,
    TOKENIZER_FILE,
    WORDS_FILE,
    FileRecord,
    GraphName,
    Manifest,
    read_manifest,
)
from service.bundle.reader import Bundle, load_bundle
from service.errors import BundleError


@dataclass(frozen=True)
class BundleDraft:
    """The content of a bundle; `label_sets` maps `everyday.npz` to its content, checked before."""

    card: ModelCard
    labels: Sequence[Label] = ()  # one for each logit of the trained head, in order
    graphs: Mapping[GraphName, Mapping[Precision, bytes]] = field(default_factory=dict)
    tokenizer: bytes | None = None  # `tokenizer.json` of the text encoder
    label_sets: Mapping[str, bytes] = field(default_factory=dict)
    background: bytes | None = None  # `background.npz`
    words: bytes | None = None  # `words.json`, checked before


def check_target(path: Path) -> None:
    """Raises `BundleError` if `path` exists and is neither an empty folder nor a bundle."""
    if os.path.lexists(path) and not _is_replaceable(path):
        raise BundleError(f"{path} exists and is not a bundle, or has other files too")


def write_bundle(path: Path, draft: BundleDraft) -> Bundle:
    """Writes a bundle next to `path`, verifies it and moves it there, or raises `BundleError`.

    The last part of `path` must be the model's name. Between two renames, `path` does not exist.
    """
    check_target(path)
    if path.name != draft.card.name:
        raise BundleError(f"the folder must be named {draft.card.name}; it is {path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        staging.chmod(0o755)
        _write_files(staging, draft)
        bundle = load_bundle(staging)
        _swap(staging, path)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return replace(bundle, path=path)


def _write_files(folder: Path, draft: BundleDraft) -> None:
    files: dict[str, FileRecord] = {}

    def put(name: str, content: bytes) -> str:
        (folder / name).write_bytes(content)
        files[name] = FileRecord(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        return name

    graphs: dict[GraphName, dict[Precision, str]] = {
        graph: {p: put(f"{graph}.{p}.onnx", content) for p, content in variants.items()}
        for graph, variants in draft.graphs.items()
    }
    if draft.labels:
        put(LABELS_FILE, _dump([label.model_dump(exclude_none=True) for label in draft.labels]))
    if draft.tokenizer is not None:
        put(TOKENIZER_FILE, draft.tokenizer)
    if draft.background is not None:
        put(BACKGROUND_FILE, draft.background)
    if draft.words is not None:
        put(WORDS_FILE, draft.words)
    for name, content in draft.label_sets.items():
        put(f"{SET_PREFIX}{name}", content)
    manifest = Manifest(schema_version=SCHEMA_VERSION, card=draft.card, graphs=graphs, files=files)
    (folder / MANIFEST_FILE).write_bytes(_dump(manifest.model_dump(mode="json", exclude_none=True)))


def _is_replaceable(path: Path) -> bool:
    try:
        entries = list(path.iterdir())
        known = {MANIFEST_FILE, *read_manifest(path).files} if entries else set()
    except (BundleError, OSError):
        return False
    is_bundle = all(entry.name in known and entry.is_file() for entry in entries)
    return is_bundle and not path.is_symlink()


def _swap(staging: Path, path: Path) -> None:
    if not path.exists():
        os.replace(staging, path)
        return
    # POSIX has no rename that replaces a folder with files: move the old one away first.
    with tempfile.TemporaryDirectory(
        prefix=f".{path.name}-old-", dir=path.parent, ignore_cleanup_errors=True
    ) as folder:
        old = Path(folder, "bundle")
        os.replace(path, old)
        try:
            os.replace(staging, path)
        except OSError:
            os.replace(old, path)
            raise


def _dump(value: object) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
