"""Ready label sets of open labels, and the embeddings of their names."""

from codecs import BOM_UTF8
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from export import ExportError
from export.graphs.graph import EmbedTexts, FloatArray
from service.bundle.card import EmbeddingSpace, format_first_error, write_prompt
from service.errors import InvalidLabelSet, LabelSetError
from service.labels.definition import Definition, LabelSetRecord, check_fit
from service.labels.files import parse_label_set
from service.labels.words import pack_words, parse_words

EVERYDAY = Path(__file__).parents[1] / "label_sets" / "everyday.json"
"""The label set of a model that has no other labels."""
EVERYDAY_WORDS = EVERYDAY.with_name("words.json")
"""Its words, and those of the parents."""


def read_label_set(path: Path, space: EmbeddingSpace) -> Definition:
    """Reads a ready label set; raises ExportError if it is invalid or does not fit a space."""
    try:
        content = path.read_bytes()
        if path.suffix == ".npz":
            definition = parse_label_set(content, ".npz", path.stem)
        else:
            definition = LabelSetRecord.model_validate_json(content.removeprefix(BOM_UTF8)).define()
        return check_fit(definition, space, encodes_text=True)
    except OSError as error:
        raise ExportError(f"label set {path} cannot be read") from error
    except ValidationError as error:
        reason = format_first_error(error, LabelSetRecord)
        raise ExportError(f"label set {path.name}: {reason}") from error
    except LabelSetError as error:
        raise ExportError(f"label set {path.name}: {error.describe()}") from error


def read_words(path: Path) -> bytes:
    """Returns a bundle's `words.json` from such a file or a label set; raises ExportError."""
    try:
        content = path.read_bytes()
        if path.suffix == ".json" and b'"about":' in content:
            parse_words(content)
            return content
        words = parse_label_set(content, path.suffix, path.stem).words
    except OSError as error:
        raise ExportError(f"words {path} cannot be read") from error
    except InvalidLabelSet as error:
        raise ExportError(f"words {path.name}: {error.reason}") from error
    if not words:
        raise ExportError(f"words {path.name}: no label has aliases, parents or translations")
    return pack_words(words).encode()


def embed_label_set(definition: Definition, space: EmbeddingSpace, embed: EmbedTexts) -> Definition:
    """Embeds every label of a checked set, so that a service encodes no text when it starts."""
    given = dict(zip(definition.given, definition.embeddings, strict=True))
    missing = [i for i in range(len(definition.names)) if i not in given]
    prompts = definition.texts(space)
    given |= zip(missing, embed([prompts[i] for i in missing]), strict=True)
    return replace(
        definition,
        given=tuple(range(len(given))),
        embeddings=np.stack([given[i] for i in range(len(given))]),
        embedding_space=space.fingerprint,
    )


def embed_names(names: Sequence[str], template: str, embed: EmbedTexts) -> FloatArray:
    """Embeds names in a template, float32 [L, E]."""
    return embed([write_prompt(template, name) for name in names])
