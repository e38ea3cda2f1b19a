"""Tokenizers of CLIP and SigLIP, as bundles have them."""

import re
import string
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tokenizers import Regex, Tokenizer, normalizers
from tokenizers.processors import TemplateProcessing

from models.checkpoints.description import CheckpointError
from models.checkpoints.hub import fetch_needed, read_json
from models.config import Towers

_CONFIG = "tokenizer_config.json"
_CANONICAL = "SiglipTokenizer"  # of the first SigLIP, which was trained without punctuation
# If no file names them; the first that the tokenizer has.
_SPECIALS = {
    "clip": {"bos_token": ("<|startoftext|>",), "eos_token": ("<|endoftext|>",)},
    "siglip": {"eos_token": ("<eos>", "</s>"), "pad_token": ("<pad>", "</s>")},
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
        special = {
            key: _find_token(rules, config.get(key), () if key in config else usual)
            for key, usual in _SPECIALS[kind].items()
        }
        if lacking := [key for key, token in special.items() if not token]:
            raise CheckpointError(f"{checkpoint} lacks special tokens in {_CONFIG}: {lacking[0]}")
        frame = (special.get("bos_token", ""), special["eos_token"])
        # As in training; for Gemma's tokenizer, options in the configuration replace the file's.
        rules.post_processor = TemplateProcessing(
            single=" $A ".join(frame).strip(),
            special_tokens=[(token, rules.token_to_id(token)) for token in frame if token],
        )
        if kind == "siglip":
            rules.normalizer = _clean(rules.normalizer, canonical=canonical)
        rules.no_padding()
        rules.enable_truncation(max_tokens)  # the service refuses longer texts
        rules.encode(_PROBE)
        pad_id = rules.token_to_id(special.get("pad_token", frame[1]))
        numbers = rules.get_vocab(with_added_tokens=False).values()
        return Framed(rules.to_str().encode(), pad_id, max(numbers, default=0) + 1)
    except (KeyboardInterrupt, SystemExit, CheckpointError):
        raise
    except BaseException as error:  # Rust's panics too
        raise CheckpointError(f"{checkpoint} has a tokenizer.json that is damaged") from error


def _find_token(rules: Tokenizer, given: object, usual: Sequence[str]) -> str:
    """Returns a special token that the tokenizer has; empty if it has none."""
    names = [given.get("content") if isinstance(given, dict) else given, *usual]
    known = (n for n in names if isinstance(n, str) and rules.token_to_id(n) is not None)
    return next(known, "")


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
