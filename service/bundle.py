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
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

SCHEMA_VERSION = 1
MANIFEST_FILE = "manifest.json"
LABELS_FILE = "labels.json"

Precision = Literal["fp32", "fp16", "int8"]
GraphName = Literal["encoder", "trained_head"]
Device = Literal["cpu", "cuda", "tensorrt"]
ResizeMode = Literal["squash", "crop"]
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Activation = Literal["sigmoid", "softmax"]

# A name becomes a folder name and a URL part, so it keeps to a safe alphabet.
ModelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class BundleError(Exception):
    """A bundle is absent, damaged or inconsistent; the message is one line for a person."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class InputContract(_Record):
    """How an upright RGB photo becomes the encoder's uint8 [B, H, W, 3] input.

    Scaling to floats and mean/std are inside the encoder graph, so they are not here.

    Attributes:
        height: H, pixels.
        width: W, pixels.
        resize_mode: `squash` resizes to H x W ignoring the aspect ratio (the official
            ML-Decoder evaluation); `crop` resizes the shorter side to size / crop_pct,
            then takes the centre (timm's evaluation).
        crop_pct: share of the resized picture that the centre crop keeps, (0, 1];
            only read when `resize_mode` is `crop`.
        interpolation: Pillow resampling filter (antialiased except `nearest`).
    """

    height: int = Field(ge=1, le=4096)
    width: int = Field(ge=1, le=4096)
    resize_mode: ResizeMode
    crop_pct: float = Field(default=1.0, gt=0.0, le=1.0)
    interpolation: Interpolation


class TrainedHead(_Record):
    """The head with a fixed list of labels.

    Attributes:
        kind: architecture, for example `ml_decoder` or `gap`.
        num_labels: N, the width of the logits.
        activation: `sigmoid` (multi-label) or `softmax` (single-label).
    """

    kind: str
    num_labels: int = Field(ge=1)
    activation: Activation


class Provenance(_Record):
    """Where the weights came from.

    Attributes:
        backbone: timm name of the backbone.
        checkpoint_sha256: hash of the checkpoint file that was exported.
        training_data: free text: data set and number of images, or `unknown`.
        tools: package name -> version, of the tools that wrote the bundle.
    """

    backbone: str
    checkpoint_sha256: Sha256
    training_data: str
    tools: dict[str, str]


class Metric(_Record):
    """One measured figure of one precision variant.

    Attributes:
        name: `mAP` (0..100, percent), for example.
        value: the figure.
        precision: variant it was measured on.
        dataset: data set and split, for example `coco18/test`.
        images: number of images it was measured over.
    """

    name: str
    value: float
    precision: Precision
    dataset: str
    images: int = Field(ge=1)


class FileRecord(_Record):
    """Size in bytes and sha256 of one file of the bundle."""

    bytes: int = Field(ge=0)
    sha256: Sha256


class Label(_Record):
    """One trained label, in the order of the logits.

    Attributes:
        name: unique name, shown to users.
        description: optional longer text.
        threshold: calibrated score (0..1) at and above which the label is predicted,
            chosen for best F1 on validation; None where it was not calibrated.
        precision: at that threshold on validation, 0..1.
        recall: at that threshold on validation, 0..1.
        positives: number of validation images with this label.
    """

    name: str = Field(min_length=1, max_length=200)
    description: str | None = None
    threshold: float | None = Field(default=None, ge=0.0, le=1.0)
    precision: float | None = Field(default=None, ge=0.0, le=1.0)
    recall: float | None = Field(default=None, ge=0.0, le=1.0)
    positives: int | None = Field(default=None, ge=0)


class ModelCard(_Record):
    """What a bundle says of itself, apart from its files.

    Attributes:
        name: model name; also the name of the bundle's folder.
        version: model version, free text without white space.
        license: SPDX identifier or free text.
        provenance: where the weights came from.
        input: how a photo becomes the encoder's input.
        trained_head: the head with trained labels.
        default_precision: precision that the service picks on a device when asked for
            `auto`; a device that is absent here takes `fp32`.
        metrics: measured figures of the variants.
    """

    name: ModelName
    version: Annotated[str, StringConstraints(pattern=r"^\S{1,64}$")]
    license: str
    provenance: Provenance
    input: InputContract
    trained_head: TrainedHead
    default_precision: dict[Device, Precision] = Field(default_factory=dict)
    metrics: tuple[Metric, ...] = ()


class Manifest(_Record):
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
    expected = manifest.card.trained_head.num_labels
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
    for graph in ("encoder", "trained_head"):
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
