"""Contradictions: what a person says of a checkpoint, held against what it is.

In: the configuration of a network that was read, and the hints. Out: nothing, or the error that
names the first that does not fit. Foreign files take what they lack from the hints; a file that
tells all of itself takes nothing, and a hint that changes nothing would mislead. Used by
`evaluate.py` and by the export.
"""

from __future__ import annotations

from models.checkpoints.layouts import CheckpointError, Hints
from models.config import DecoderConfig, HeadConfig, NetworkConfig, Query2LabelConfig


def check_hints(name: str, config: NetworkConfig, hints: Hints) -> None:
    """Does nothing where the hints fit.

    Args:
        name: of the checkpoint's file.
        config: of the network in it.
        hints: what was said of it.

    Raises:
        CheckpointError: one contradicts the network.
    """
    if hints.backbone not in (None, config.backbone):
        raise CheckpointError(f"{name} was made with {config.backbone}, not {hints.backbone}")
    size = (config.input.height, config.input.width)
    if hints.image_size not in (None, *size):
        raise CheckpointError(
            f"{name} was made for {size[0]} x {size[1]} pixels, not {hints.image_size}"
        )
    _check_head(name, config.head, hints)


def _check_head(name: str, head: HeadConfig, hints: Hints) -> None:
    num_heads = head.num_heads if isinstance(head, DecoderConfig) else None
    if hints.num_heads not in (None, num_heads):
        raise CheckpointError(
            f"{name} has {num_heads or 'no'} attention heads, not {hints.num_heads}"
        )
    pre_norm = isinstance(head, Query2LabelConfig) and head.pre_norm
    if hints.pre_norm not in (None, pre_norm):
        where = "before" if pre_norm else "behind"
        raise CheckpointError(f"{name} has its norms {where} the attention")
