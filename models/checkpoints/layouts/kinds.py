"""Names weights that no reader can use by their keys: quantised ones, and those of no tagger."""

from __future__ import annotations

import re
from collections.abc import Iterable

from models.checkpoints.description import CheckpointError

_BEFORE = "give the weights from before it"
# A pattern of keys, and what a file with one of them has.
_QUANTISED = (
    (r"\._packed_params", f"weights quantised by torch.ao (int8): {_BEFORE}"),
    (r"\.(SCB|weight_format|absmax|quant_map|quant_state\.\w+)$",
     f"weights quantised by bitsandbytes: {_BEFORE}"),
    (r"\.(qweight|qzeros|g_idx)$", f"weights quantised by GPTQ or AWQ: {_BEFORE}"),
    (r"\.weight(_packed|_scale|_scale_inv|\._data|\._scale)$", f"quantised weights: {_BEFORE}"),
    (r"\.weight_(orig|mask)$", "pruned or spectrally normalised weights: make that permanent, for "
     "example with torch.nn.utils.prune.remove, then store them"),
    (r"\.lora_(A|B|down|up)\.", "adapters (LoRA): merge them into the network's weights, for "
     "example with merge_and_unload()"),
)  # fmt: skip
_NO_TAGGERS = (
    (r"(^|\.)(down_blocks|up_blocks|diffusion_model|first_stage_model|controlnet_\w+)\.",
     "a diffusion model, not a tagger"),
    (r"^(model\.)*\d+\.(conv|cv\d|m)\.|(^|\.)(rpn|roi_heads?|bbox_head|bbox_embed)\.",
     "a detector, not a tagger"),
    (r"^(ultralytics|models\.yolo)\.", "a YOLO network, not a tagger"),  # pickled classes
    (r"(^|\.)(mask_decoder|prompt_encoder|decode_head|segmentation_head)\.", "a model for "
     "segmentation, not a tagger"),
    (r"(^|\.)(word_embeddings|embed_tokens|lm_head|wte)\.", "a language model, not a tagger"),
    (r"(^|\.)(vision_model\.embeddings|visual\.(transformer|trunk|conv1)|text_model)\b",
     "a CLIP or SigLIP: give a folder as transformers or open_clip write it"),
    (r"(^|\.)exp_avg(_sq)?$|^param_groups", "the state of an optimizer"),
)  # fmt: skip


def refuse_quantised(keys: Iterable[str]) -> None:
    """Raises CheckpointError for weights that are numbers of another kind than a network's."""
    what = _find(keys, _QUANTISED)
    if what is not None:
        raise CheckpointError(f"the checkpoint has {what}")


def refuse_no_tagger(keys: Iterable[str]) -> None:
    """Raises CheckpointError for weights that are of no tagger; call it if no reader knows them.

    `keys` may be names of pickled classes too.
    """
    what = _find(keys, _NO_TAGGERS)
    if what is not None:
        raise CheckpointError(f"the checkpoint is {what}")


def _find(keys: Iterable[str], kinds: tuple[tuple[str, str], ...]) -> str | None:
    names = "\n".join(keys)
    return next((what for pattern, what in kinds if re.search(pattern, names, re.MULTILINE)), None)
