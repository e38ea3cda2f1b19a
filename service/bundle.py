"""The bundle: the folder that is all a service needs to serve one model.

In: a folder. Out: a verified `Bundle`. `bundle_draft.py` writes what is read here; nothing else
knows file names or keys. Next: `engine.py`, which opens the graphs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from service.card import (
    Device,
    Label,
    ModelCard,
    Precision,
    Record,
    RunPrecision,
    Sha256,
    tell_first_error,
)
from service.errors import BundleError, InvalidLabelSet, LabelSetError
from service.labels.definition import Definition, check_fit
from service.labels.files import parse_label_set

SCHEMA_VERSION = 1
MANIFEST_FILE = "manifest.json"
LABELS_FILE = "labels.json"
TOKENIZER_FILE = "tokenizer.json"
SET_PREFIX = "label_set."
"""Ready label sets are files of this form: `label_set.everyday.npz`."""

GraphName = Literal[
    "encoder",
    "trained_head",
    "trained_head_maps",
    "open_head",
    "open_head_maps",
    "label_encoder",
    "text_encoder",
]
"""The graphs of a bundle:

- `encoder`: `images` uint8 [B, H, W, 3] -> `tokens` float [B, S, C]
- `trained_head`: `tokens` -> `logits` [B, N] of the trained labels
- `open_head`: `tokens` and `queries` float [L, K] -> `logits` [B, L]
- `label_encoder`: `embeddings` float [L, E] -> `queries` [L, K]
- `text_encoder`: `input_ids` and `attention_mask` int64 [L, T] -> `embeddings` [L, E], of
  length 1
- `trained_head_maps`: `memory` and `labels` int64 [L] -> `maps` float [B, L, rows, columns], 0..1
- `open_head_maps`: `memory` and `queries` [L, K] -> `maps`

A head that has maps gives `memory` float [B, S, D] beside its logits.
"""

MAP_GRAPHS: tuple[GraphName, ...] = ("trained_head_maps", "open_head_maps")
"""The graphs of attention maps, which a bundle may lack; they run on the CPU, in float32."""

# The graphs that run in the same precision on every device, and in which, best first.
_FIXED_PRECISIONS: Mapping[GraphName, tuple[Precision, ...]] = {
    "label_encoder": ("fp32", "fp16", "int8"),
    "text_encoder": ("int8", "fp32"),  # on a CPU, where texts are encoded, int8 is the faster
    **dict.fromkeys(MAP_GRAPHS, ("fp32",)),
}


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
        order: tuple[Precision, ...] = ("fp32", "fp16", "int8")
        return tuple(p for p in order if p in self.manifest.graphs["encoder"])

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
        return next((p for p in _FIXED_PRECISIONS[graph] if p in variants), None)

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

    def read_label_sets(self) -> tuple[Definition, ...]:
        """Returns the ready label sets, by name.

        Raises:
            BundleError: one of them cannot be used, or has changed.
        """
        files = sorted(file for file in self.manifest.files if file.startswith(SET_PREFIX))
        return tuple(
            _parse_label_set(file, _read_verified(self.path, file, self.manifest.files[file]))
            for file in files
        )


def load_bundle(path: Path) -> Bundle:
    """Reads and verifies a bundle: schema, sizes, hashes, label counts.

    Shapes of the graphs are verified where they are opened (`engine.py`). A bundle that is replaced
    meanwhile is read again.

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
    _check_graphs(path, manifest)
    contents = {file: _read_verified(path, file, rec) for file, rec in manifest.files.items()}
    labels = _check_labels(manifest.card, contents.get(LABELS_FILE))
    bundle = Bundle(path=path, manifest=manifest, labels=labels)
    for definition in bundle.read_label_sets():
        _check_label_set(bundle, definition)
    return bundle


def read_manifest(path: Path) -> Manifest:
    """Reads the manifest alone.

    Raises:
        BundleError: there is none, or it is of another schema.
    """
    try:
        text = _read_plain(path / MANIFEST_FILE)
    except OSError as error:
        reason = f"{path} is not a bundle: no readable {MANIFEST_FILE}"
        if not path.exists():
            reason += "; there is no such folder: --bundle or ML_DECODER_BUNDLE names another"
        raise BundleError(reason) from error
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
        raise BundleError(f"{path.name}: {MANIFEST_FILE}: {tell_first_error(error)}") from error


def _check_graphs(path: Path, manifest: Manifest) -> None:
    needed = _needed_graphs(manifest)
    for graph in needed:
        variants = manifest.graphs.get(graph)
        if not variants:
            raise BundleError(f"{path.name}: manifest lists no {graph} graph")
        for file in variants.values():
            if file not in manifest.files:
                raise BundleError(f"{path.name}: {file} is not among the manifest's files")
    for graph in manifest.graphs:
        if graph not in needed:
            raise BundleError(f"{path.name}: {graph} belongs to no head of the manifest")
    _check_variants(path, manifest)


def _check_variants(path: Path, manifest: Manifest) -> None:
    for graph, variants in manifest.graphs.items():
        allowed = _FIXED_PRECISIONS.get(graph)
        if allowed is None and "fp32" not in variants:
            raise BundleError(f"{path.name}: {graph} lacks the variant fp32")
        if allowed is not None and not variants.keys() <= set(allowed):
            raise BundleError(f"{path.name}: {graph} comes as {' or '.join(allowed)}")
    if "text_encoder" in manifest.graphs and TOKENIZER_FILE not in manifest.files:
        raise BundleError(f"{path.name}: manifest lists no {TOKENIZER_FILE}")
    asked = set(manifest.card.default_precision.values())
    if not asked <= set(Bundle(path, manifest, ()).precisions()):
        raise BundleError(f"{path.name}: default_precision names a variant that is absent")


def _needed_graphs(manifest: Manifest) -> tuple[GraphName, ...]:
    graphs: list[GraphName] = ["encoder"]
    may_lack: list[GraphName] = []
    if manifest.card.trained_head is not None:
        graphs.append("trained_head")
        may_lack.append("trained_head_maps")
    if manifest.card.open_head is not None:
        graphs += ["open_head", "label_encoder"]
        may_lack += ["text_encoder", "open_head_maps"]
    return (*graphs, *(graph for graph in may_lack if graph in manifest.graphs))


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


def _check_label_set(bundle: Bundle, definition: Definition) -> None:
    where = f"label set {definition.name}"
    if bundle.card.open_head is None:
        raise BundleError(f"{where}: the bundle has no open head")
    encodes_text = bundle.label_precision("text_encoder") is not None
    try:
        check_fit(definition, bundle.card.open_head.embedding_space, encodes_text=encodes_text)
    except LabelSetError as error:
        raise BundleError(f"{where}: {error}") from error


def _parse_label_set(file: str, content: bytes) -> Definition:
    try:
        ending = Path(file).suffix
        name = file.removeprefix(SET_PREFIX).removesuffix(ending)
        return parse_label_set(content, ending, name)
    except InvalidLabelSet as error:
        raise BundleError(f"{file}: {error.reason}") from error


def _read_verified(folder: Path, file: str, record: FileRecord) -> bytes:
    plain = Path(file).name == file and file.isprintable()
    if not plain or file in {"", ".", "..", MANIFEST_FILE}:
        raise BundleError(f"{folder.name}: {file!r} is not a plain file name")
    path = folder / file
    try:
        size = path.stat().st_size
        content = _read_plain(path) if size == record.bytes else b""
    except OSError as error:
        raise BundleError(f"{folder.name}: {file} cannot be read") from error
    if size != record.bytes:
        raise BundleError(f"{folder.name}: {file} has {size} bytes, manifest says {record.bytes}")
    if hashlib.sha256(content).hexdigest() != record.sha256:
        raise BundleError(f"{folder.name}: {file} does not match its sha256")
    return content


def _read_plain(path: Path) -> bytes:
    if not path.is_file():  # a pipe keeps its reader waiting, and a device may never end
        raise OSError(f"{path} is no plain file")
    return path.read_bytes()


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
