"""The manifest of a bundle, `manifest.json`, and the names of its files and graphs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from service.bundle.card import ModelCard, Precision, Record, Sha256, format_first_error
from service.errors import BundleError

SCHEMA_VERSION = 5
"""Version 2 added calibrations, version 3 the screen, mean, std, prefix tokens, the softmax of open
heads and several descriptions of a label, version 4 thresholds by purpose, version 5 those of
`precise`. All are optional: older files are read too."""
_FOLDERS_SHOWN = 5
MANIFEST_FILE = "manifest.json"
LABELS_FILE = "labels.json"
TOKENIZER_FILE = "tokenizer.json"
BACKGROUND_FILE = "background.npz"
"""What photos look like to the encoder, as `labels.whitening` reads it: optional."""
WORDS_FILE = "words.json"
"""Words of the labels, as `labels.words` reads them: optional."""
SET_PREFIX = "label_set."
"""Start of the file names of label sets, such as `label_set.everyday.npz`."""

GraphName = Literal[
    "encoder",
    "trained_head",
    "trained_head_maps",
    "open_head",
    "open_head_maps",
    "screened_head",
    "label_encoder",
    "text_encoder",
]
"""The graphs of a bundle:

- `encoder`: `images` uint8 [B, H, W, 3] -> `tokens` float [B, S, C]
- `trained_head`: `tokens` -> `logits` [B, N] of the trained labels
- `open_head`: `tokens` and `queries` float [L, K] -> `logits` [B, L]
- `label_encoder`: `embeddings` float [L, E] -> `queries` [L, K]
- `text_encoder`: `input_ids` and `attention_mask` int64 [L, T] -> `embeddings` [L, E], normalised
- `trained_head_maps`: `memory` and `labels` int64 [L] -> `maps` float [B, L, rows, columns], 0..1
- `open_head_maps`: `memory` and `queries` [L, K] -> `maps`
- `screened_head`: see `Screen` in the card. `tokens`, `queries`, `scale` and `shift` float [L],
  `wanted` int64 [B], `projected` float [L, D], `readouts` float [L, D + 1], and in some bundles
  `votes` float [L, V] and `names` int64 [L, V] -> `logits` [B, k] of the labels at `positions`
  int64 [B, k], and `needed` int64 [B], how many of them count. These are at least the `wanted` best
  by scale * logit + shift and all of 0 or more. If `needed` is above k, the open head has to score.

With a screen, `label_encoder` also returns the keys of labels, from `projected` to `names`.

A head that has maps also returns `memory` float [B, S, D], which its queries attend to.
"""

MAP_GRAPHS: tuple[GraphName, ...] = ("trained_head_maps", "open_head_maps")
"""Graphs of attention maps: optional, run on the CPU in float32."""

FIXED_PRECISIONS: Mapping[GraphName, tuple[Precision, ...]] = {
    "label_encoder": ("fp32", "fp16", "int8"),
    "text_encoder": ("int8", "fp32"),  # int8 is faster on a CPU, which encodes texts
    **dict.fromkeys((*MAP_GRAPHS, "screened_head"), ("fp32",)),
}
"""Precisions, best first, of graphs whose precision is the same on every device."""


class FileRecord(Record):
    """One file of the bundle."""

    bytes: int = Field(ge=0)
    sha256: Sha256


class Manifest(Record):
    """`manifest.json`: the card, the graph variants and the hash of every other file."""

    schema_version: int = Field(ge=1, le=SCHEMA_VERSION)
    card: ModelCard
    graphs: dict[GraphName, dict[Precision, str]]
    files: dict[str, FileRecord]


def read_manifest(path: Path) -> Manifest:
    """Reads the manifest alone; raises `BundleError` if missing, invalid or of another schema."""
    try:
        text = read_regular_file(path / MANIFEST_FILE)
    except OSError as error:
        raise BundleError(f"{path} is not a bundle: {_explain_missing(path)}") from error
    try:
        version = json.loads(text).get("schema_version")
    except (ValueError, AttributeError, RecursionError) as error:
        raise BundleError(f"{path.name}: {MANIFEST_FILE} is not a JSON object") from error
    if version not in range(1, SCHEMA_VERSION + 1):
        raise BundleError(
            f"{path.name}: schema_version is {version!r}, this service reads 1 to "
            f"{SCHEMA_VERSION}: export the bundle again"
        )
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        raise BundleError(f"{path.name}: {MANIFEST_FILE}: {format_first_error(error)}") from error


def _explain_missing(path: Path) -> str:
    if not path.exists():
        return (
            "the folder does not exist; set --bundle or ML_DECODER_BUNDLE to one that "
            "`ml-decoder export` made, or to bundles/ml-decoder-lite0 of a checkout"
        )
    try:
        inside = sorted(manifest.parent for manifest in path.glob(f"*/{MANIFEST_FILE}"))
    except OSError:
        inside = []
    if inside:
        return f"it contains the bundles {', '.join(map(str, inside[:_FOLDERS_SHOWN]))}; name one"
    return f"no readable {MANIFEST_FILE}"


def check_graphs(path: Path, manifest: Manifest) -> None:
    """Raises `BundleError` unless graphs and variants are complete and consistent."""
    known = _list_graphs(manifest.card)
    for graph, required in known.items():
        if not manifest.graphs.get(graph, not required):
            raise BundleError(f"{path.name}: manifest lists no {graph} graph")
    for graph, variants in manifest.graphs.items():
        if graph not in known:
            owner = "screen" if graph == "screened_head" else "head"
            raise BundleError(f"{path.name}: {graph} belongs to no {owner} of the manifest")
        _check_variants(path, graph, variants)
    files = {file for variants in manifest.graphs.values() for file in variants.values()}
    if "text_encoder" in manifest.graphs:
        files.add(TOKENIZER_FILE)
    if missing := sorted(files - manifest.files.keys()):
        raise BundleError(f"{path.name}: {missing[0]} is not among the manifest's files")
    if not set(manifest.card.default_precision.values()) <= manifest.graphs["encoder"].keys():
        raise BundleError(f"{path.name}: default_precision names a variant that is absent")


def _list_graphs(card: ModelCard) -> dict[GraphName, bool]:  # and whether each is required
    graphs: dict[GraphName, bool] = {"encoder": True}
    if card.trained_head is not None:
        graphs |= {"trained_head": True, "trained_head_maps": False}
    if card.open_head is not None:
        graphs |= {"open_head": True, "label_encoder": True}
        graphs |= {"text_encoder": False, "open_head_maps": False}
        if card.open_head.screen is not None:
            graphs["screened_head"] = True
    return graphs


def _check_variants(path: Path, graph: GraphName, variants: Mapping[Precision, str]) -> None:
    allowed = FIXED_PRECISIONS.get(graph)
    # The encoder may be in any one precision: quantised files of a hub have no fp32 beside them.
    if allowed is None and "fp32" not in variants and graph != "encoder":
        raise BundleError(f"{path.name}: {graph} lacks the variant fp32")
    if allowed is not None and not variants.keys() <= set(allowed):
        raise BundleError(f"{path.name}: {graph} must be {' or '.join(allowed)}")


def read_regular_file(path: Path) -> bytes:
    """Returns the content of a regular file, or raises `OSError`."""
    if not path.is_file():  # reading a pipe or a device may never end
        raise OSError(f"{path} is not a regular file")
    return path.read_bytes()
