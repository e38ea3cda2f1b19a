"""CLIP and SigLIP of open_clip, with a ViT as image tower: renamed to those of `transformers`."""

import re
from collections.abc import Mapping
from typing import Any

import timm
import torch
from pydantic import ValidationError
from timm.data import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD
from torch import Tensor, nn

from models.checkpoints.description import CheckpointError, State
from models.checkpoints.layouts.state import LEAVES, rename
from models.config import InputConfig, ResizeMode

_Options = dict[str, Any]
# Those that are read, or change nothing outside training; others may change what is computed.
_OPTIONS = {
    "model_cfg": "embed_dim vision_cfg text_cfg quick_gelu custom_text init_logit_bias "
    "init_logit_scale",
    "vision_cfg": "image_size layers width patch_size head_width mlp_ratio patch_dropout "
    "timm_model_name timm_model_pretrained timm_pool timm_proj timm_drop timm_drop_path",
    "text_cfg": "context_length vocab_size width heads layers mlp_ratio hf_tokenizer_name "
    "tokenizer_kwargs no_causal_mask proj_bias pool_type norm_kwargs act_kwargs",
}
_PHOTOS: dict[str, Any] = {
    "mean": OPENAI_CLIP_MEAN,
    "std": OPENAI_CLIP_STD,
    "interpolation": "bicubic",
    "resize_mode": "shortest",
}
_RESIZE_MODES: dict[str, ResizeMode] = {"shortest": "crop", "squash": "squash"}
_SIGLIP_TEXTS = {"no_causal_mask": True, "proj_bias": True, "pool_type": "last"}
_TEXT, _VISION = "text_model.", "vision_model."
_NAMES = (
    (r"^visual\.proj$", "visual_projection.weight"),
    (r"^(text\.)?text_projection$", "text_projection.weight"),
    (r"^text\.text_projection\.", f"{_TEXT}head."),
    (r"^visual\.(trunk\.)?", _VISION),
    (r"^(text\.)?(?=(token_embedding|positional_embedding|ln_final|transformer)\b)", _TEXT),
    (r"\.attn_pool\.latent$", ".head.probe"),
    (r"\.attn_pool\.proj\.", ".head.attention.out_proj."),
    (r"\.attn_pool\.norm\.", ".head.layernorm."),
    (r"\.attn_pool\.", ".head."),
    (r"\.(?:conv1|patch_embed\.proj)\.", ".embeddings.patch_embedding."),
    (r"\.(class|token)_embedding\b", r".embeddings.\1_embedding"),
    (r"\.(?:positional_embedding|pos_embed)$", ".embeddings.position_embedding.weight"),
    (r"\.ln_pre\.", ".pre_layrnorm."),
    (r"^vision_model\.(?:ln_post|norm)\.", f"{_VISION}post_layernorm."),
    (r"\.ln_final\.", ".final_layer_norm."),
    (r"\.(?:transformer\.res)?blocks\.", ".encoder.layers."),
    (r"\.(?:ln_|norm)([12])\.", r".layer_norm\1."),
    (r"\.mlp\.c_fc\.", ".mlp.fc1."),
    (r"\.mlp\.c_proj\.", ".mlp.fc2."),
    (r"(\.\d+)\.attn\.(?:out_)?proj\.", r"\1.self_attn.out_proj."),
)
_PACKED = re.compile(r"(.*\.\d+)\.attn\.(?:in_proj_|qkv\.)(weight|bias)$")


def describe_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the `config.json` of `transformers` for an `open_clip_config.json`."""
    model: dict[str, Any] = dict(config.get("model_cfg") or {})
    vision, text = dict(model.get("vision_cfg") or {}), dict(model.get("text_cfg") or {})
    for part, options in (("model_cfg", model), ("vision_cfg", vision), ("text_cfg", text)):
        unknown = sorted(set(options) - set(_OPTIONS[part].split()))
        if unknown:
            raise CheckpointError(f"open_clip's option {unknown[0]} of {part} is not supported")
    describe = _describe_siglip if vision.get("timm_model_name") else _describe_clip
    try:
        return describe(model, vision, text)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError("open_clip_config.json describes neither CLIP nor SigLIP") from error


def describe_photos(config: Mapping[str, Any]) -> InputConfig:
    """Reads the preparation of photos of an `open_clip_config.json`; raises CheckpointError."""
    photos = _PHOTOS | dict(config.get("preprocess_cfg") or {})
    size = config["model_cfg"]["vision_cfg"]["image_size"]
    try:
        return InputConfig(
            height=size,
            width=size,
            mean=photos["mean"],
            std=photos["std"],
            interpolation=photos["interpolation"],
            resize_mode=_RESIZE_MODES[photos["resize_mode"]],
        )
    except (KeyError, ValidationError) as error:
        raise CheckpointError("open_clip's preprocess_cfg is not supported") from error


def _describe_clip(model: _Options, vision: _Options, text: _Options) -> _Options:
    if text.keys() & {"no_causal_mask", "proj_bias", "norm_kwargs", "pool_type"}:
        raise ValueError("texts of another kind")
    activation = "quick_gelu" if model.get("quick_gelu") else "gelu"
    images = {
        "image_size": vision["image_size"],
        "patch_size": vision["patch_size"],
        "num_attention_heads": vision["width"] // vision.get("head_width", 64),
        **_describe_layers(vision, activation),
    }
    return {
        "model_type": "clip",
        "projection_dim": model["embed_dim"],
        "vision_config": images,
        "text_config": _describe_texts(text, activation),
    }


def _describe_siglip(model: _Options, vision: _Options, text: _Options) -> _Options:
    kind = {key: text.get(key) for key in _SIGLIP_TEXTS}
    pooling = vision.get("timm_pool"), vision.get("timm_proj")
    if kind != _SIGLIP_TEXTS or pooling != ("map", "none") or model.get("quick_gelu"):
        raise ValueError("towers of another kind")
    if not timm.is_model(vision["timm_model_name"]):  # `hf-hub:` would fetch a file
        raise ValueError("a tower of another library")
    with torch.device("meta"):  # without memory
        trunk: Any = timm.create_model(vision["timm_model_name"], num_classes=0)
    block = trunk.blocks[0]
    images = {
        "image_size": vision["image_size"],
        "patch_size": trunk.patch_embed.patch_size[0],
        "hidden_size": trunk.embed_dim,
        "intermediate_size": block.mlp.fc1.out_features,
        "num_hidden_layers": len(trunk.blocks),
        "num_attention_heads": block.attn.num_heads,
        "hidden_act": "gelu" if isinstance(block.mlp.act, nn.GELU) else "gelu_pytorch_tanh",
        "layer_norm_eps": block.norm1.eps,
    }
    texts = {
        **_describe_texts(text, "gelu"),
        "projection_size": model["embed_dim"],
        "layer_norm_eps": (text.get("norm_kwargs") or {}).get("eps", 1e-5),
    }
    return {"model_type": "siglip", "vision_config": images, "text_config": texts}


def _describe_texts(text: _Options, activation: str) -> _Options:
    if text.get("act_kwargs"):
        if activation != "gelu" or text["act_kwargs"] != {"approximate": "tanh"}:
            raise ValueError("an activation of another kind")
        activation = "gelu_pytorch_tanh"
    return {
        "vocab_size": text["vocab_size"],
        "max_position_embeddings": text["context_length"],
        "num_attention_heads": text["heads"],
        **_describe_layers(text, activation),
    }


def _describe_layers(tower: _Options, activation: str) -> _Options:
    return {
        "hidden_size": tower["width"],
        "intermediate_size": int(tower["width"] * tower.get("mlp_ratio", 4.0)),
        "num_hidden_layers": int(tower["layers"]),
        "hidden_act": activation,
    }


def rename_open_clip(state: Mapping[str, Tensor]) -> State:
    """Returns open_clip's tensors under the names of `transformers`."""
    renamed: State = {}
    for name, tensor in rename(state, _NAMES).items():
        if packed := _PACKED.match(name):
            for part, third in zip("qkv", tensor.chunk(3), strict=True):
                renamed[f"{packed[1]}.self_attn.{part}_proj.{packed[2]}"] = third
        else:
            transposed = name in {"visual_projection.weight", "text_projection.weight"}
            renamed[name] = tensor.T if transposed else tensor
    if "logit_bias" in renamed:  # SigLIP
        for leaf in LEAVES:
            parts = [renamed.pop(f"{_VISION}head.{part}.{leaf}") for part in ("q", "kv")]
            renamed[f"{_VISION}head.attention.in_proj_{leaf}"] = torch.cat(parts)
        positions = f"{_VISION}embeddings.position_embedding.weight"
        renamed[positions] = renamed[positions].squeeze(0)
        renamed |= {name: renamed[name].reshape(1) for name in ("logit_scale", "logit_bias")}
    return renamed
