"""CLIP and SigLIP in folders of `transformers` and open_clip: both towers and the tokenizer."""

import re
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from tokenizers import Regex, normalizers
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoImageProcessor,
    CLIPConfig,
    CLIPModel,
    PreTrainedTokenizerFast,
    SiglipConfig,
    SiglipModel,
)
from transformers.utils import logging

from models.checkpoints.description import NO_HINTS, CheckpointError, Hints, State
from models.checkpoints.files import CONFIG, fetch, fetch_needed, read_json, read_weights
from models.checkpoints.formats import is_on_hub, is_repository
from models.checkpoints.layouts.open_clip import describe_model, describe_photos, rename_open_clip
from models.checkpoints.layouts.state import build_filled, unwrap
from models.checkpoints.preparation import take_rgb
from models.commands import RequestError
from models.config import CosineConfig, InputConfig, NetworkConfig, crop_share
from models.text import TextEncoder
from models.towers import ClipTexts, SiglipTexts, TowerNetwork

# The texts of the models' own examples.
_TEMPLATES = {"clip": "a photo of a {}.", "siglip": "This is a photo of {}."}
_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic")  # by Pillow's numbers
_OPEN_CLIP_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
_CANONICAL = "SiglipTokenizer"  # of the first SigLIP, which was trained without punctuation


# A model, the sha256 of its weights' file, how it takes photos, and whether its texts are encoded
# without punctuation.
_Stored = tuple[CLIPModel | SiglipModel, str, InputConfig, bool]


def read_clip(
    checkpoint: Path | str, hints: Hints = NO_HINTS
) -> tuple[TowerNetwork, TextEncoder] | None:
    """Reads both towers of a folder or `hf-hub:owner/name`, in eval mode; None for other models."""
    if is_on_hub(checkpoint):
        name = str(checkpoint).partition(":")[2]
    elif Path(checkpoint).is_dir():
        name = Path(checkpoint).resolve().name
    else:
        return None
    logging.set_verbosity_error()  # it would log every file that it reads
    config = read_json(checkpoint, CONFIG)
    written = config.get("model_type")
    if isinstance(written, str) and written in _TEMPLATES:
        stored = _read_transformers(checkpoint, name, config)
    elif open_clip := read_json(checkpoint, "open_clip_config.json"):
        stored = _read_open_clip(checkpoint, name, open_clip)
    elif "architecture" in config or (written is None and is_repository(checkpoint)):
        return None  # one file, perhaps with timm's description
    else:
        raise CheckpointError(
            f"{name} must be a model of type clip or siglip, or in the layout of timm; it is "
            f"{written or 'without config.json'}"
        )
    model, _, preparation, _ = stored
    kind: Literal["clip", "siglip"] = "clip" if isinstance(model, CLIPModel) else "siglip"
    text = _read_texts(checkpoint, name, stored)
    if not hints.crop:
        preparation = preparation.model_copy(update={"resize_mode": "squash", "crop_pct": 1.0})
    network_config = NetworkConfig(
        backbone=name,
        input=preparation,
        head=CosineConfig(
            kind=kind,
            embedding_width=text.width,
            embedding_encoder=name,
            embedding_template=_TEMPLATES[kind],
        ),
        activation="softmax" if kind == "clip" else "sigmoid",
    )
    network = TowerNetwork(hints.complete(name, network_config), model)
    if hints.channels == "bgr":
        take_rgb(network.eval().backbone, network.config.input)
    return network.eval().requires_grad_(False), text


def _read_transformers(checkpoint: Path | str, name: str, config: Mapping[str, Any]) -> _Stored:
    file = read_weights(checkpoint)
    # Older versions stored these numbers, which are not weights.
    state, _ = unwrap(file.content)
    state = {key: v for key, v in state.items() if not key.endswith(".position_ids")}
    model = _build(name, config, state)
    path = fetch_needed(checkpoint, "preprocessor_config.json", "processor_config.json")
    try:
        preparation = _read_preparation(path.parent, model.vision_model.embeddings.image_size)
    except Exception as error:
        raise CheckpointError(
            f"{name} has a preparation of photos that is not supported"
        ) from error
    tokenizer = read_json(checkpoint, "tokenizer_config.json").get("tokenizer_class")
    return model, file.sha256, preparation, tokenizer == _CANONICAL


def _read_open_clip(checkpoint: Path | str, name: str, config: Mapping[str, Any]) -> _Stored:
    file = read_weights(checkpoint, _OPEN_CLIP_WEIGHTS)
    model = _build(name, describe_model(config), rename_open_clip(unwrap(file.content)[0]))
    cleaning = config["model_cfg"]["text_cfg"].get("tokenizer_kwargs") or {}
    return model, file.sha256, describe_photos(config), cleaning.get("clean") == "canonicalize"


def _build(name: str, config: Mapping[str, Any], state: State) -> CLIPModel | SiglipModel:
    """Builds a model from the content of a `config.json`."""

    def build() -> Any:  # noqa: ANN401
        if config["model_type"] == "clip":
            model: Any = CLIPModel(CLIPConfig.from_dict(dict(config)))
        else:
            model = SiglipModel(SiglipConfig.from_dict(dict(config)))
        model.set_attn_implementation("eager")  # a fused kernel cannot be traced
        return model

    try:
        return build_filled(build, state)
    except RequestError as error:
        raise CheckpointError(f"{name}: {error}") from error
    except Exception as error:  # the library raises many types for an odd configuration
        raise CheckpointError(f"{name} has a config.json that is damaged") from error


def _read_preparation(folder: Path, size: int) -> InputConfig:
    """Reads an image processor; raises ValueError if its photos are not size x size pixels."""
    processor: Any = AutoImageProcessor.from_pretrained(folder, trust_remote_code=False)
    resized, edge = processor.size, processor.size.shortest_edge
    crop = edge is not None and processor.do_center_crop
    target = processor.crop_size if crop else resized
    if (target.height, target.width) != (size, size) or (crop and edge < size):
        raise ValueError("photos have another size")
    return InputConfig(
        height=size,
        width=size,
        mean=tuple(processor.image_mean),
        std=tuple(processor.image_std),
        interpolation=_FILTERS[processor.resample],
        resize_mode="crop" if crop else "squash",
        crop_pct=crop_share(size, edge) if crop else 1.0,
    )


def _read_texts(checkpoint: Path | str, name: str, stored: _Stored) -> TextEncoder:
    path = fetch_needed(checkpoint, "tokenizer.json")
    for optional in ("tokenizer_config.json", "special_tokens_map.json"):
        fetch(checkpoint, optional)
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(path.parent)
    except Exception as error:  # both libraries raise many types
        raise CheckpointError(f"{name} has a tokenizer.json that is damaged") from error
    rules, (model, sha256, _, canonical) = tokenizer.backend_tokenizer, stored
    module: ClipTexts | SiglipTexts
    if isinstance(model, CLIPModel):
        module, width = ClipTexts(model), model.text_projection.out_features
        frame = (tokenizer.bos_token, tokenizer.eos_token)
    else:
        if tokenizer.pad_token_id is None:
            raise CheckpointError(f"{name} has no pad_token in tokenizer_config.json")
        module = SiglipTexts(model, tokenizer.pad_token_id)
        width = model.text_model.head.out_features
        frame = ("", tokenizer.eos_token)
        rules.normalizer = _clean(rules.normalizer, canonical=canonical)
    known = module.body.embeddings.token_embedding.num_embeddings
    tokens = max(rules.get_vocab(with_added_tokens=False).values(), default=0) + 1
    if tokens > known:
        raise CheckpointError(
            f"{name} has a tokenizer.json of {tokens} tokens, and a text tower that knows {known}"
        )
    if None in frame:
        raise CheckpointError(f"{name} lacks special tokens in tokenizer_config.json")
    # As in training; for Gemma's tokenizer, options in tokenizer_config.json replace the file's.
    specials = [(token, rules.token_to_id(token)) for token in frame if token]
    rules.post_processor = TemplateProcessing(
        single=" $A ".join(frame).strip(), special_tokens=specials
    )
    rules.enable_truncation(module.max_tokens)  # the service refuses longer texts
    return TextEncoder(
        name,
        width,
        module.eval().requires_grad_(False),
        rules.to_str().encode(),
        sha256,
        in_8_bits=False,  # a cosine counts up to 100-fold
    )


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
