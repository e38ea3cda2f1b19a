"""The bundle: the folder that is all a service needs to serve one model.

In: a folder (reading) or a draft (writing). Out: a verified `Bundle` (reading) or a
folder (writing). `export` writes through here, `service` reads through here, nothing
else knows file names or keys. Next: `engine.py`, which opens the graphs.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from service.card import Device, Label, ModelCard, Precision, Record, Sha256

SCHEMA_VERSION = 1
MANIFEST_FILE = "manifest.json"
LABELS_FILE = "labels.json"

GraphName = Literal["encoder", "trained_head", "open_head", "label_encoder", "text_encoder"]
"""The graphs of a bundle:

- `encoder`: `images` uint8 [B, H, W, 3] -> `tokens` float [B, S, C]
- `trained_head`: `tokens` -> `logits` [B, N] of the trained labels
- `open_head`: `tokens` and `queries` float [L, K] -> `logits` [B, L]
- `label_encoder`: `embeddings` float [L, E] -> `queries` [L, K]
- `text_encoder`: `input_ids` and `attention_mask` int64 [L, T] -> `embeddings` [L, E], of
  length 1
"""


class BundleError(Exception):
    """A bundle is absent, damaged or inconsistent; the message is one line for a person."""


class FileRecord(Record):
    """Size in bytes and sha256 of one file of the bundle."""

    bytes: int = Field(ge=0)
    sha256: Sha256


class Manifest(Record):
    """`manifest.json`: the card, the graph variants and the hash of every other file."""

    schema_version: Literal[1]
    card: ModelCard
    graphs: dict[GraphName, dict[Precision, str]]
    files: dict[str, FileRecord]


@dataclass(frozen=True)
class Bundle:
    """A verified bundle, opened for reading."""

    path: Path
    manifest: Manifest
    labels: tuple[Label, ...]

    @property
    def card(self) -> ModelCard:
        """The model card part of the manifest."""
        return self.manifest.card

    def precisions(self) -> tuple[Precision, ...]:
        """Returns the precisions that every graph of the bundle has, fp32 first."""
        variants = self.manifest.graphs.values()
        order: tuple[Precision, ...] = ("fp32", "fp16", "int8")
        return tuple(p for p in order if all(p in graph for graph in variants))

    def default_precision(self, device: Device) -> Precision:
        """Returns the precision that `auto` means on `device`."""
        return self.card.default_precision.get(device, "fp32")

    def read_graph(self, graph: GraphName, precision: Precision) -> bytes:
        """Returns the serialized ONNX model of one variant, checked against its hash.

        Raises:
            BundleError: the bundle has no such variant, or the file has changed.
        """
        file = self.manifest.graphs.get(graph, {}).get(precision)
        if file is None:
            raise BundleError(f"bundle {self.card.name} has no {precision} variant of {graph}")
        return _read_verified(self.path, file, self.manifest.files[file])


@dataclass(frozen=True)
class BundleDraft:
    """Everything that `write_bundle` needs.

    Attributes:
        card: the model card.
        labels: one entry per logit, in order.
        graphs: graph -> precision -> serialized ONNX model.
    """

    card: ModelCard
    labels: Sequence[Label]
    graphs: Mapping[GraphName, Mapping[Precision, bytes]] = field(default_factory=dict)


def load_bundle(path: Path) -> Bundle:
    """Reads and verifies a bundle: schema, sizes, hashes, label counts.

    Shapes of the graphs are verified where they are opened (`engine.py`).

    Raises:
        BundleError: with a one-line reason, whatever is wrong with the folder.
    """
    manifest = _read_manifest(path)
    _check_graphs(path, manifest)
    labels_record = manifest.files.get(LABELS_FILE)
    if labels_record is None:
        raise BundleError(f"{path.name}: manifest lists no {LABELS_FILE}")
    contents = {file: _read_verified(path, file, rec) for file, rec in manifest.files.items()}
    labels = _parse_labels(contents[LABELS_FILE])
    head = manifest.card.trained_head
    expected = 0 if head is None else head.num_labels
    if len(labels) != expected:
        raise BundleError(f"{LABELS_FILE} has {len(labels)} labels, manifest says {expected}")
    return Bundle(path=path, manifest=manifest, labels=labels)


def write_bundle(path: Path, draft: BundleDraft) -> Bundle:
    """Writes a bundle atomically: a reader sees the old folder or the new one, whole.

    Args:
        path: the bundle's folder; its last part has to be the model's name. An existing
            bundle there is replaced.
        draft: card, labels and graphs.

    Returns:
        The bundle as `load_bundle` reads it back.

    Raises:
        BundleError: the draft is inconsistent; nothing was written.
    """
    if path.name != draft.card.name:
        raise BundleError(f"folder {path.name} and model name {draft.card.name} differ")
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        staging.chmod(0o755)
        _write_files(staging, draft)
        load_bundle(staging)
        _swap(staging, path)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return load_bundle(path)


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
    put(LABELS_FILE, _dump([label.model_dump(exclude_none=True) for label in draft.labels]))
    manifest = Manifest(schema_version=SCHEMA_VERSION, card=draft.card, graphs=graphs, files=files)
    (folder / MANIFEST_FILE).write_bytes(_dump(manifest.model_dump(mode="json")))


def _swap(staging: Path, path: Path) -> None:
    # POSIX has no rename that replaces a full folder, so the old one steps aside first.
    if not path.exists():
        os.replace(staging, path)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}-old-", dir=path.parent))
    os.replace(path, aside / "bundle")
    try:
        os.replace(staging, path)
    except OSError:
        os.replace(aside / "bundle", path)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _dump(value: object) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _read_manifest(path: Path) -> Manifest:
    try:
        text = (path / MANIFEST_FILE).read_bytes()
    except OSError as error:
        raise BundleError(f"{path} is not a bundle: no readable {MANIFEST_FILE}") from error
    try:
        version = json.loads(text).get("schema_version")
    except (ValueError, AttributeError, RecursionError) as error:
        raise BundleError(f"{path.name}: {MANIFEST_FILE} is not a JSON object") from error
    if version != SCHEMA_VERSION:
        raise BundleError(
            f"{path.name}: schema version {version!r}, this service reads {SCHEMA_VERSION}"
        )
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        raise BundleError(f"{path.name}: {MANIFEST_FILE}: {_first_error(error)}") from error


def _first_error(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}"


def _check_graphs(path: Path, manifest: Manifest) -> None:
    needed: list[GraphName] = ["encoder"]
    if manifest.card.trained_head is not None:
        needed.append("trained_head")
    if manifest.card.open_head is not None:
        needed += ["open_head", "label_encoder"]
    for graph in needed:
        variants = manifest.graphs.get(graph)
        if not variants:
            raise BundleError(f"{path.name}: manifest lists no {graph} graph")
        for file in variants.values():
            if file not in manifest.files:
                raise BundleError(f"{path.name}: {file} is not among the manifest's files")
    asked = set(manifest.card.default_precision.values())
    if not asked <= set(Bundle(path, manifest, ()).precisions()):
        raise BundleError(f"{path.name}: default_precision names a variant that is absent")


def _read_verified(folder: Path, file: str, record: FileRecord) -> bytes:
    if Path(file).name != file or file in {"", ".", "..", MANIFEST_FILE}:
        raise BundleError(f"{folder.name}: {file!r} is not a plain file name")
    try:
        content = (folder / file).read_bytes()
    except OSError as error:
        raise BundleError(f"{folder.name}: {file} cannot be read") from error
    if len(content) != record.bytes:
        raise BundleError(
            f"{folder.name}: {file} has {len(content)} bytes, manifest says {record.bytes}"
        )
    if hashlib.sha256(content).hexdigest() != record.sha256:
        raise BundleError(f"{folder.name}: {file} does not match its sha256")
    return content


def _parse_labels(content: bytes) -> tuple[Label, ...]:
    try:
        labels = tuple(Label.model_validate(entry) for entry in json.loads(content))
    except ValidationError as error:
        raise BundleError(f"{LABELS_FILE}: {_first_error(error)}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise BundleError(f"{LABELS_FILE} is not a JSON list of labels") from error
    names = [label.name for label in labels]
    if len(set(names)) != len(names):
        raise BundleError(f"{LABELS_FILE} names a label twice")
    return labels
