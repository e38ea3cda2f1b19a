"""CLIP and SigLIP in folders of `transformers` and open_clip: both towers and the tokenizer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import CLIPConfig, CLIPModel, SiglipConfig, SiglipModel
from transformers.utils import logging

from models.checkpoints.description import NO_HINTS, CheckpointError, Hints, State
from models.checkpoints.files import read_weights
from models.checkpoints.formats import is_on_hub, is_repository
from models.checkpoints.hub import CONFIG, fetch_needed, read_json
from models.checkpoints.layouts.open_clip import describe_model, describe_photos, rename_open_clip
from models.checkpoints.layouts.state import build_filled, unwrap
from models.checkpoints.preparation import take_rgb
from models.checkpoints.processors import read_processor
from models.checkpoints.tokenizers import TEMPLATES, read_tokenizer
from models.commands import RequestError
from models.config import CosineConfig, InputConfig, NetworkConfig, Towers
from models.text import TextEncoder
from models.towers import ClipTexts, SiglipTexts, TowerNetwork

_OPEN_CLIP_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")


# A model, the sha256 of its weights' file, how it takes photos, and whether its texts are encoded
# without punctuation: None if the tokenizer decides.
_Stored = tuple[CLIPModel | SiglipModel, str, InputConfig, bool | None]


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
    if isinstance(written, str) and written in TEMPLATES:
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
    kind = _find_kind(model)
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
            embedding_template=TEMPLATES[kind],
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
    preparation = read_processor(
        read_json(checkpoint, path.name),
        _find_kind(model),
        model.vision_model.embeddings.image_size,
        crop=True,
    )
    return model, file.sha256, preparation, None


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


def _read_texts(checkpoint: Path | str, name: str, stored: _Stored) -> TextEncoder:
    model, sha256, _, canonical = stored
    embeddings = model.text_model.embeddings
    kind, max_tokens = _find_kind(model), embeddings.position_embedding.num_embeddings
    tokenizer = read_tokenizer(checkpoint, kind, max_tokens, canonical=canonical)
    known = embeddings.token_embedding.num_embeddings
    if tokenizer.size > known:
        raise CheckpointError(
            f"{name} has a tokenizer.json of {tokenizer.size} tokens, and a text tower that knows "
            f"{known}"
        )
    module: ClipTexts | SiglipTexts
    if isinstance(model, CLIPModel):
        module, width = ClipTexts(model), model.text_projection.out_features
    else:
        module = SiglipTexts(model, tokenizer.pad_id)
        width = model.text_model.head.out_features
    return TextEncoder(
        name,
        width,
        module.eval().requires_grad_(False),
        tokenizer.content,
        sha256,
        in_8_bits=False,  # a cosine counts up to 100-fold
    )


def _find_kind(model: CLIPModel | SiglipModel) -> Towers:
    return "clip" if isinstance(model, CLIPModel) else "siglip"
