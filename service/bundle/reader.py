"""The bundle: the folder that is all a service needs to serve one model.

In: a folder. Out: a verified `Bundle`. `manifest.py` and this file alone know file names and keys;
`bundle_draft.py` writes what is read here. Next: `engine.py`, which opens the graphs.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from service.bundle.card import Device, Label, ModelCard, Precision, RunPrecision, tell_first_error
from service.bundle.manifest import (
    FIXED_PRECISIONS,
    LABELS_FILE,
    MANIFEST_FILE,
    SET_PREFIX,
    TOKENIZER_FILE,
    FileRecord,
    GraphName,
    Manifest,
    check_graphs,
    read_manifest,
    read_plain,
)
from service.errors import BundleError


@dataclass(frozen=True)
class Bundle:
    """A verified bundle, opened for reading.

    Attributes:
        path: its folder.
        manifest: card, graph variants and files.
        labels: the trained labels, one for each logit; none where there is no trained head.
    """

    path: Path
    manifest: Manifest
    labels: tuple[Label, ...]

    @property
    def card(self) -> ModelCard:
        """The model card part of the manifest."""
        return self.manifest.card

    def precisions(self) -> tuple[Precision, ...]:
        """Returns the precisions that the encoder has, fp32 first; see `image_precision`."""
        return self.manifest.precisions()

    def image_precision(self, graph: GraphName, precision: RunPrecision) -> Precision:
        """Returns which variant of a graph runs where `precision` is asked for.

        A head that gains nothing by it may lack a precision; it runs in fp32 then. So does what
        is run in bf16, which is not stored.
        """
        variants = self.manifest.graphs.get(graph, {})
        return next((variant for variant in variants if variant == precision), "fp32")

    def label_precision(self, graph: Literal["label_encoder", "text_encoder"]) -> Precision | None:
        """Returns the precision in which a graph for labels runs; None where it is not there.

        It is the same on every device, so that replicas agree on what a label is.
        """
        variants = self.manifest.graphs.get(graph, {})
        return next((p for p in FIXED_PRECISIONS[graph] if p in variants), None)

    def default_precision(self, device: Device) -> Precision:
        """Returns the variant that `auto` means on `device`."""
        chosen = self.card.default_precision
        # What is faster with one set of a CPU's kernels is so with the other.
        return chosen.get(device, chosen.get("cpu", "fp32") if device == "openvino" else "fp32")

    def read_graph(self, graph: GraphName, precision: Precision) -> bytes:
        """Returns the serialized ONNX model of one variant, checked against its hash.

        Raises:
            BundleError: the bundle has no such variant, or the file has changed.
        """
        file = self.manifest.graphs.get(graph, {}).get(precision)
        if file is None:
            raise BundleError(f"bundle {self.card.name} has no {precision} variant of {graph}")
        return _read_verified(self.path, file, self.manifest.files[file])

    def read_tokenizer(self) -> bytes:
        """Returns the text encoder's tokenizer, as the package `tokenizers` writes it.

        Raises:
            BundleError: the bundle has none, or the file has changed.
        """
        record = self.manifest.files.get(TOKENIZER_FILE)
        if record is None:
            raise BundleError(f"bundle {self.card.name} has no {TOKENIZER_FILE}")
        return _read_verified(self.path, TOKENIZER_FILE, record)

    def read_label_sets(self) -> dict[str, bytes]:
        """Returns the label sets as stored: file name, such as `everyday.npz` -> content.

        Raises:
            BundleError: a file has changed.
        """
        return {
            file.removeprefix(SET_PREFIX): _read_verified(self.path, file, record)
            for file, record in sorted(self.manifest.files.items())
            if file.startswith(SET_PREFIX)
        }


def load_bundle(path: Path) -> Bundle:
    """Reads and verifies a bundle: schema, sizes, hashes, label counts.

    The engine verifies the graphs' shapes, `labels.opening.read_bundle_sets` the label sets. A
    bundle that is replaced meanwhile is read again.

    Raises:
        BundleError: with a one-line reason, whatever is wrong with the folder.
    """
    manifest = read_manifest(path)
    try:
        return _verify(path, manifest)
    except BundleError:
        if read_manifest(path) == manifest:
            raise
    return load_bundle(path)


def _verify(path: Path, manifest: Manifest) -> Bundle:
    check_graphs(path, manifest)
    contents = {file: _read_verified(path, file, rec) for file, rec in manifest.files.items()}
    labels = _check_labels(manifest.card, contents.get(LABELS_FILE))
    return Bundle(path=path, manifest=manifest, labels=labels)


def _check_labels(card: ModelCard, content: bytes | None) -> tuple[Label, ...]:
    if card.trained_head is None:
        if content is not None:
            raise BundleError(f"{LABELS_FILE} without a trained head")
        return ()
    if content is None:
        raise BundleError(f"manifest lists no {LABELS_FILE}")
    labels = _parse_labels(content)
    expected = card.trained_head.num_labels
    if len(labels) != expected:
        raise BundleError(f"{LABELS_FILE} has {len(labels)} labels, manifest says {expected}")
    return labels


def _read_verified(folder: Path, file: str, record: FileRecord) -> bytes:
    plain = Path(file).name == file and file.isprintable()
    if not plain or file in {"", ".", "..", MANIFEST_FILE}:
        raise BundleError(f"{folder.name}: {file!r} is not a plain file name")
    path = folder / file
    try:
        size = path.stat().st_size
        content = read_plain(path) if size == record.bytes else b""
    except OSError as error:
        raise BundleError(f"{folder.name}: {file} cannot be read") from error
    if size != record.bytes:
        raise BundleError(f"{folder.name}: {file} has {size} bytes, manifest says {record.bytes}")
    if hashlib.sha256(content).hexdigest() != record.sha256:
        raise BundleError(f"{folder.name}: {file} does not match its sha256")
    return content


def _parse_labels(content: bytes) -> tuple[Label, ...]:
    try:
        labels = tuple(Label.model_validate(entry) for entry in json.loads(content))
    except ValidationError as error:
        raise BundleError(f"{LABELS_FILE}: {tell_first_error(error)}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise BundleError(f"{LABELS_FILE} is not a JSON list of labels") from error
    names = [label.name for label in labels]
    if len(set(names)) != len(names):
        raise BundleError(f"{LABELS_FILE} names a label twice")
    return labels
