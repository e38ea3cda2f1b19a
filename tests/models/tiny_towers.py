"""CLIP and SigLIP of test size, in the folders that `transformers` writes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModel,
    AutoTokenizer,
    CLIPConfig,
    CLIPImageProcessor,
    CLIPModel,
    CLIPTokenizer,
    PreTrainedModel,
    Siglip2Tokenizer,
    SiglipConfig,
    SiglipImageProcessor,
    SiglipModel,
)

KINDS = ("clip", "siglip")
SIDE = 24
"""Pixels; nine patches."""
VOCABULARY = 400
"""More than the tokenizers have: small tensors stay in float32."""
MAX_TOKENS = {"clip": 40, "siglip": 64}

_LETTERS = "abcdefghijklmnopqrstuvwxyz.,!'"
TOWER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def write_towers(folder: Path, kind: str, side: int = SIDE, patch: int = 8) -> Path:
    """Writes a model with random weights, its tokenizer and image processor; returns the folder."""
    if kind == "clip":
        tokenizer = _make_clip_tokenizer()
        processor = CLIPImageProcessor(
            size={"shortest_edge": side}, crop_size={"height": side, "width": side}
        )
    else:
        tokenizer = _make_siglip_tokenizer()
        processor = SiglipImageProcessor(size={"height": side, "width": side})
    texts = {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": MAX_TOKENS[kind],
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": 0,
        **TOWER,
    }
    images = {"image_size": side, "patch_size": patch, **TOWER}
    torch.manual_seed(0)
    if kind == "clip":
        model = CLIPModel(CLIPConfig(text_config=texts, vision_config=images, projection_dim=20))
    else:
        texts["projection_size"] = TOWER["hidden_size"]
        model = SiglipModel(SiglipConfig(text_config=texts, vision_config=images))
        model.logit_scale.data.fill_(2.0)
        model.logit_bias.data.fill_(-1.5)
    for parameter in model.parameters():  # the models' own start makes all inputs look alike
        if parameter.numel() > 1:
            parameter.data += 0.2 * torch.randn_like(parameter)
    for part in (model, tokenizer, processor):
        part.save_pretrained(folder)
    return folder


@torch.inference_mode()
def run_transformers(folder: Path, pixels: Tensor, texts: Sequence[str]) -> Tensor:
    """Returns the logits [B, L] of pixel values [B, 3, H, W] and texts, by the models' guides."""
    model: PreTrainedModel = AutoModel.from_pretrained(folder).eval()
    if isinstance(model, SiglipModel):
        padding: dict[str, Any] = {"padding": "max_length", "max_length": MAX_TOKENS["siglip"]}
    else:
        padding = {"padding": True, "max_length": MAX_TOKENS["clip"]}
    tokens = AutoTokenizer.from_pretrained(folder)(
        list(texts), truncation=True, return_tensors="pt", **padding
    )
    if isinstance(model, SiglipModel):
        del tokens["attention_mask"]  # the published tokenizers give none
    return model(pixel_values=pixels, **tokens).logits_per_image


def _make_clip_tokenizer() -> CLIPTokenizer:
    pieces = [*_LETTERS, *(f"{letter}</w>" for letter in _LETTERS), "ph", "of</w>"]
    specials = ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {piece: number for number, piece in enumerate([*pieces, *specials])}
    return CLIPTokenizer(vocabulary, [("p", "h"), ("o", "f</w>")])


def _make_siglip_tokenizer() -> Siglip2Tokenizer:
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *_LETTERS, "▁", "ph"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    # The published tokenizers pad at the right, the class at the left.
    return Siglip2Tokenizer(
        vocabulary, [("p", "h")], add_eos_token=True, padding_side="right", model_max_length=64
    )
