"""Reads a bundle and verifies all of its files."""

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pydantic import ValidationError

from service.bundle.card import (
    Device,
    Label,
    ModelCard,
    Precision,
    RunPrecision,
    format_first_error,
)
from service.bundle.manifest import (
    BACKGROUND_FILE,
    FIXED_PRECISIONS,
    LABELS_FILE,
    MANIFEST_FILE,
    SET_PREFIX,
    TOKENIZER_FILE,
    WORDS_FILE,
    FileRecord,
    GraphName,
    Manifest,
    check_graphs,
    read_manifest,
    read_regular_file,
)
from service.errors import BundleError


@dataclass(frozen=True)
class Bundle:
    """A verified bundle; `labels` are the trained labels, one for each logit of the head."""

    path: Path
    manifest: Manifest
    labels: tuple[Label, ...]

    @property
    def card(self) -> ModelCard:
        """The model card."""
        return self.manifest.card

    def precisions(self) -> tuple[Precision, ...]:
        """Returns the encoder's precisions, fp32 first; heads may have fewer."""
        return tuple(p for p in get_args(Precision) if p in self.manifest.graphs["encoder"])

    def image_precision(self, graph: GraphName, precision: RunPrecision) -> Precision:
        """Returns the variant to read: `precision` if the graph has it, else fp32, as for bf16."""
        variants = self.manifest.graphs.get(graph, {})
        return next((variant for variant in variants if variant == precision), "fp32")

    def label_precision(self, graph: Literal["label_encoder", "text_encoder"]) -> Precision | None:
        """Returns the variant to read: one for all devices, so that queries are equal; or None."""
        variants = self.manifest.graphs.get(graph, {})
        return next((p for p in FIXED_PRECISIONS[graph] if p in variants), None)

    def default_precision(self, device: Device) -> Precision:
        """Returns the precision that `auto` means on a device."""
        chosen = self.card.default_precision
        # OpenVINO's kernels are fastest in the same precision as ONNX Runtime's.
        alike: Device = "cpu" if device == "openvino" else device
        wanted = chosen.get(device) or chosen.get(alike, "fp32")
        stored = self.precisions()
        return wanted if wanted in stored else stored[0]

    def read_graph(self, graph: GraphName, precision: Precision) -> bytes:
        """Returns the ONNX model of one variant; raises `BundleError` if absent or changed."""
        file = self.manifest.graphs.get(graph, {}).get(precision)
        if file is None:
            raise BundleError(f"bundle {self.card.name} has no {precision} variant of {graph}")
        return self._read(file)

    def read_tokenizer(self) -> bytes:
        """Returns the text encoder's tokenizer; raises `BundleError` if changed."""
        return self._read(TOKENIZER_FILE)

    def read_background(self) -> bytes | None:
        """Returns `background.npz`, or None if absent; raises `BundleError` if changed."""
        return self._read(BACKGROUND_FILE) if BACKGROUND_FILE in self.manifest.files else None

    @property
    def encoder_fingerprint(self) -> str:
        """Sha256 in hex of the encoder; its precisions have nearly equal embeddings."""
        return self.manifest.files[self.manifest.graphs["encoder"][self.precisions()[0]]].sha256

    @property
    def photo_fingerprint(self) -> str:
        """Sha256 in hex of encoder and background: what labels learn from photos fits no others."""
        background = self.manifest.files.get(BACKGROUND_FILE)
        parts = self.encoder_fingerprint + (background.sha256 if background else "")
        return hashlib.sha256(parts.encode()).hexdigest()

    def read_words(self) -> bytes | None:
        """Returns `words.json`, or None if absent; raises `BundleError` if changed."""
        return self._read(WORDS_FILE) if WORDS_FILE in self.manifest.files else None

    def read_label_sets(self) -> dict[str, bytes]:
        """Returns contents by file name (`everyday.npz`); raises `BundleError` if changed."""
        return {
            file.removeprefix(SET_PREFIX): self._read(file)
            for file in sorted(self.manifest.files)
            if file.startswith(SET_PREFIX)
        }

    def _read(self, file: str) -> bytes:
        return _read_verified(self.path, file, self.manifest.files[file])


def load_bundle(path: Path) -> Bundle:
    """Verifies a bundle except graphs and label sets; raises `BundleError`, in one line."""
    manifest = read_manifest(path)
    try:
        return _verify(path, manifest)
    except BundleError:
        if read_manifest(path) == manifest:
            raise
    return load_bundle(path)


def _verify(path: Path, manifest: Manifest) -> Bundle:
    check_graphs(path, manifest)
    head, content = manifest.card.trained_head, None
    for file, record in manifest.files.items():
        read = _read_verified(path, file, record)
        content = read if file == LABELS_FILE else content
        del read  # before the next one is read
    if head is not None and content is None:
        raise BundleError(f"manifest lists no {LABELS_FILE}")
    labels = () if content is None else _parse_labels(content)
    expected = 0 if head is None else head.num_labels
    if len(labels) != expected:
        raise BundleError(f"{LABELS_FILE} must have {expected} labels; it has {len(labels)}")
    return Bundle(path=path, manifest=manifest, labels=labels)


def _read_verified(folder: Path, file: str, record: FileRecord) -> bytes:
    safe = Path(file).name == file and file.isprintable()
    if not safe or file in {"", ".", "..", MANIFEST_FILE}:
        raise BundleError(f"{folder.name}: {file!r} is not a plain file name")
    path = folder / file
    try:
        size = path.stat().st_size
        content = read_regular_file(path) if size == record.bytes else b""
    except OSError as error:
        raise BundleError(f"{folder.name}: {file} cannot be read") from error
    if size != record.bytes:
        reason = f"{file} must have {record.bytes} bytes; it has {size}: copy the bundle again"
        raise BundleError(f"{folder.name}: {reason}")
    if hashlib.sha256(content).hexdigest() != record.sha256:
        raise BundleError(f"{folder.name}: {file} does not match its sha256: copy the bundle again")
    return content


def _parse_labels(content: bytes) -> tuple[Label, ...]:
    try:
        labels = tuple(Label.model_validate(entry) for entry in json.loads(content))
    except ValidationError as error:
        raise BundleError(f"{LABELS_FILE}: {format_first_error(error)}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise BundleError(f"{LABELS_FILE} must be a JSON list of labels") from error
    (name, count), *_ = Counter(label.name for label in labels).most_common(1) or [("", 0)]
    if count > 1:
        raise BundleError(f"{LABELS_FILE} has the label {name!r} twice")
    return labels
