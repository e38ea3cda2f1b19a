"""Tokenizers of CLIP and SigLIP, as bundles have them."""

import re
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Regex, Tokenizer, normalizers
from tokenizers.processors import TemplateProcessing

from models.checkpoints.description import CheckpointError
from models.checkpoints.hub import fetch_needed, read_json
from models.config import Towers

TEMPLATES = {"clip": "a photo of a {}.", "siglip": "This is a photo of {}."}
"""The texts of the models' own examples."""
_CONFIG = "tokenizer_config.json"
_CANONICAL = "SiglipTokenizer"  # of the first SigLIP, which was trained without punctuation
# If no file names them: those of CLIP, of SigLIP 2 and of the first SigLIP.
_USUAL = {
    "clip": [{"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>"}],
    "siglip": [
        {"eos_token": "<eos>", "pad_token": "<pad>"},
        {"eos_token": "</s>", "pad_token": "</s>"},
    ],
}
_PROBE = "a photo"


class Framed(NamedTuple):
    """A tokenizer that puts special tokens around a text and truncates it."""

    content: bytes  # of `tokenizer.json`
    pad_id: int  # of CLIP the end token's
    size: int  # tokens known


def read_tokenizer(
    checkpoint: Path | str, kind: Towers, max_tokens: int, *, canonical: bool | None = None
) -> Framed:
    """Reads `tokenizer.json`; for SigLIP it cleans texts, without punctuation if `canonical`.

    `tokenizer_config.json` decides on this by default. Raises CheckpointError if a file is missing,
    damaged or without special tokens.
    """
    content = fetch_needed(checkpoint, "tokenizer.json").read_bytes()
    config = read_json(checkpoint, _CONFIG)
    if canonical is None:
        canonical = config.get("tokenizer_class") == _CANONICAL
    if "added_tokens_decoder" not in config:  # as `transformers` does
        config |= read_json(checkpoint, "special_tokens_map.json")
    try:
        rules = Tokenizer.from_buffer(content)
        ids = rules.get_vocab()
        special = _find_special(ids, kind, config)
        if not ids.keys() >= set(special.values()):
            raise CheckpointError(f"{checkpoint} lacks special tokens in {_CONFIG}")
        frame = (special.get("bos_token", ""), special["eos_token"])
        # As in training; for Gemma's tokenizer, options in the configuration replace the file's.
        rules.post_processor = TemplateProcessing(
            single=" $A ".join(frame).strip(),
            special_tokens=[(token, ids[token]) for token in frame if token],
        )
        if kind == "siglip":
            rules.normalizer = _clean(rules.normalizer, canonical=canonical)
        rules.no_padding()
        rules.enable_truncation(max_tokens)  # the service refuses longer texts
        rules.encode(_PROBE)
        pad_id = ids[special.get("pad_token", frame[1])]
        numbers = rules.get_vocab(with_added_tokens=False).values()
        return Framed(rules.to_str().encode(), pad_id, max(numbers, default=0) + 1)
    except (KeyboardInterrupt, SystemExit, CheckpointError):
        raise
    except BaseException as error:  # Rust's panics too
        raise CheckpointError(f"{checkpoint} has a tokenizer.json that is damaged") from error


def _find_special(
    ids: Mapping[str, int], kind: Towers, config: Mapping[str, Any]
) -> dict[str, Any]:
    known = [usual for usual in _USUAL[kind] if ids.keys() >= set(usual.values())]
    special = {}
    for key, token in (*known, *_USUAL[kind])[0].items():
        given = config.get(key, token)
        special[key] = given.get("content") if isinstance(given, dict) else given
    return special


def _clean(rules: normalizers.Normalizer | None, *, canonical: bool) -> normalizers.Normalizer:
    """Adds what was done to texts before SigLIP's tokenizer in training; twice changes nothing."""
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()]
    if canonical:
        steps += [
            normalizers.Replace(Regex(f"[{re.escape(string.punctuation)}]"), ""),
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Strip(),
        ]
    return normalizers.Sequence(steps if rules is None else [*steps, rules])
