"""The manifest: what a bundle lists of itself, and the names of its files and graphs.

In: `manifest.json`. Out: a `Manifest` whose graphs make a model. `bundle_draft.py` writes it. Next:
`bundle.py`, which reads the files that it lists.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from service.bundle.card import ModelCard, Precision, Record, Sha256, tell_first_error
from service.errors import BundleError

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

FIXED_PRECISIONS: Mapping[GraphName, tuple[Precision, ...]] = {
    "label_encoder": ("fp32", "fp16", "int8"),
    "text_encoder": ("int8", "fp32"),  # on a CPU, where texts are encoded, int8 is the faster
    **dict.fromkeys(MAP_GRAPHS, ("fp32",)),
}
"""The graphs that run in the same precision on every device, and in which, best first."""


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

    def precisions(self) -> tuple[Precision, ...]:
        """Returns the precisions that the encoder has, fp32 first."""
        order: tuple[Precision, ...] = ("fp32", "fp16", "int8")
        return tuple(p for p in order if p in self.graphs["encoder"])


def read_manifest(path: Path) -> Manifest:
    """Reads the manifest alone.

    Raises:
        BundleError: there is none, or it is of another schema.
    """
    try:
        text = read_plain(path / MANIFEST_FILE)
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


def check_graphs(path: Path, manifest: Manifest) -> None:
    """Refuses a manifest whose graphs and variants do not make a model.

    Raises:
        BundleError: with a one-line reason.
    """
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
        allowed = FIXED_PRECISIONS.get(graph)
        if allowed is None and "fp32" not in variants:
            raise BundleError(f"{path.name}: {graph} lacks the variant fp32")
        if allowed is not None and not variants.keys() <= set(allowed):
            raise BundleError(f"{path.name}: {graph} comes as {' or '.join(allowed)}")
    if "text_encoder" in manifest.graphs and TOKENIZER_FILE not in manifest.files:
        raise BundleError(f"{path.name}: manifest lists no {TOKENIZER_FILE}")
    asked = set(manifest.card.default_precision.values())
    if not asked <= set(manifest.precisions()):
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


def read_plain(path: Path) -> bytes:
    """Returns a plain file's content.

    Raises:
        OSError: it is none, or cannot be read.
    """
    if not path.is_file():  # a pipe keeps its reader waiting, and a device may never end
        raise OSError(f"{path} is no plain file")
    return path.read_bytes()
