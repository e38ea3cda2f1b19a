"""Checkpoints of one network averaged: `python -m models.average --out FILE A=0.4 B=0.6`.

In: checkpoints of ours with the same configuration, fine-tuned one from the other, and their
shares. Out: one checkpoint with the mean of their weights, which generalises better than each
of them (model soups, arXiv 2203.05482; WiSE-FT, arXiv 2109.01903). Next: `python -m export`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from torch import Tensor

from models.checkpoints import Checkpoint, read_checkpoint, write_checkpoint
from models.layouts import CheckpointError
from models.network import Network


def average_checkpoints(parts: Sequence[tuple[Checkpoint, float]]) -> Checkpoint:
    """Averages the weights of checkpoints.

    Args:
        parts: checkpoints of ours and their shares, which sum to 1.

    Returns:
        The last checkpoint with averaged weights.

    Raises:
        CheckpointError: the checkpoints hold different networks or labels, or the shares do
            not sum to 1.
    """
    last = parts[-1][0]
    if any(_identify(part) != _identify(last) for part, _ in parts):
        raise CheckpointError("the checkpoints hold different networks or labels")
    if abs(sum(share for _, share in parts) - 1) > 1e-6:
        raise CheckpointError("the shares do not sum to 1")
    states = [(part.network.state_dict(), share) for part, share in parts]
    last.network.load_state_dict(
        {key: _mean([(state[key], share) for state, share in states]) for key in states[0][0]}
    )
    return last


def _identify(checkpoint: Checkpoint) -> tuple[object, ...]:
    """Returns what two checkpoints must have in common; dropout and image size may differ."""
    config = checkpoint.config
    if config is None:
        raise CheckpointError("a head without a backbone cannot be averaged")
    head = config.head.model_copy(update={"dropout": 0.0})
    return config.backbone, head, checkpoint.label_names


def _mean(tensors: list[tuple[Tensor, float]]) -> Tensor:
    last = tensors[-1][0]
    if not last.is_floating_point():  # a batch norm's counter
        return last
    mean = sum((tensor.double() * share for tensor, share in tensors), start=last.double() * 0)
    return mean.to(last.dtype)


def main(argv: list[str] | None = None) -> int:
    """Averages as told; returns the exit code (0 done, 2 a mistake in the request)."""
    arguments = _parser().parse_args(argv)
    try:
        parts = [(read_checkpoint(path), share) for path, share in arguments.parts]
        averaged = average_checkpoints(parts)
    except CheckpointError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    shares = (f"{share:g} {path.parent.name}/{path.name}" for path, share in arguments.parts)
    recipe = ", ".join(shares)
    write_checkpoint(
        arguments.out,
        cast("Network", averaged.network),
        averaged.label_names or (),
        {**averaged.notes, "average": recipe},
    )
    print(f"{arguments.out}: the average of {recipe}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m models.average", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file ending in .safetensors")
    parser.add_argument("parts", nargs="+", type=_read_part, metavar="CHECKPOINT=SHARE")
    return parser


def _read_part(text: str) -> tuple[Path, float]:
    path, _, share = text.rpartition("=")
    if not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not CHECKPOINT=SHARE")
    try:
        return Path(path), float(share)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{share!r} is not a number") from None


if __name__ == "__main__":
    sys.exit(main())
