"""`python -m models.average --out FILE A=0.4 B=0.6`: the mean weights of checkpoints.

The checkpoints must be fine-tuned one from the other. Their mean generalises better than each of
them (model soups, arXiv 2203.05482); with a share of the pretrained backbone, also to labels that
were not trained (WiSE-FT, arXiv 2109.01903).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from torch import Tensor, nn

from models.backbones.backbone import Backbone
from models.checkpoints.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from models.checkpoints.description import CheckpointError
from models.checkpoints.pretrained import load_pretrained
from models.commands import report_mistakes, run_command
from models.network import Network


def average_checkpoints(parts: Sequence[tuple[Checkpoint, float]]) -> Checkpoint:
    """Returns the last checkpoint with the weighted mean of all weights; shares sum to 1."""
    last = parts[-1][0]
    if any(_identify(part) != _identify(last) for part, _ in parts):
        raise CheckpointError("the checkpoints have different networks, inputs or labels")
    total = sum(share for _, share in parts)
    if not abs(total - 1) <= 1e-6:  # true for NaN, too
        raise CheckpointError(f"the shares must sum to 1; they sum to {total:g}")
    _load_mean(last.network, [(part.network.state_dict(), share) for part, share in parts])
    return last


def blend_untouched(checkpoint: Checkpoint, share: float) -> Checkpoint:
    """Averages a checkpoint's backbone, in place, with a share of the pretrained weights."""
    config, network = checkpoint.config, checkpoint.network
    if config is None or not isinstance(network, Network):
        raise CheckpointError("a head without a backbone cannot be averaged")
    size = (config.input.height, config.input.width)
    untouched = Backbone(config.backbone, size, norm_pooled=config.norm_pooled)
    load_pretrained(untouched)
    backbone = network.backbone
    _load_mean(backbone, [(untouched.state_dict(), share), (backbone.state_dict(), 1 - share)])
    return checkpoint


def _identify(checkpoint: Checkpoint) -> tuple[object, ...]:
    """Returns the facts that must be equal in checkpoints; dropout and image size may differ."""
    config = checkpoint.config
    if config is None:
        raise CheckpointError("a head without a backbone cannot be averaged")
    head = config.head.model_copy(update={"dropout": 0.0})
    pixels = config.input.model_copy(update={"height": 1, "width": 1})
    return (
        config.backbone,
        config.prefix_tokens,
        config.features,
        config.norm_pooled,
        head,
        config.activation,
        pixels,
        checkpoint.label_names,
    )


def _load_mean(module: nn.Module, states: list[tuple[dict[str, Tensor], float]]) -> None:
    mean = {key: _mean([(state[key], share) for state, share in states]) for key in states[0][0]}
    module.load_state_dict(mean)


def _mean(tensors: list[tuple[Tensor, float]]) -> Tensor:
    last = tensors[-1][0]
    if not last.is_floating_point():  # a batch norm's counter
        return last
    if any(tensor.shape != last.shape for tensor, _ in tensors):
        raise CheckpointError("the networks are bound to different image sizes")
    mean = sum((tensor.double() * share for tensor, share in tensors), start=last.double() * 0)
    return mean.to(last.dtype)


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 for a mistake in the request."""
    arguments = _parser().parse_args(argv)
    return report_mistakes(lambda: _average(arguments))


def _average(arguments: argparse.Namespace) -> None:
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    parts = [(read_checkpoint(path), share) for path, share in arguments.parts]
    averaged = average_checkpoints(parts)
    if arguments.untouched:
        averaged = blend_untouched(averaged, arguments.untouched)
    recipe = _describe(arguments)
    write_checkpoint(
        arguments.out,
        cast("Network", averaged.network),
        averaged.label_names or (),
        {**averaged.notes, "average": recipe},
    )
    print(f"{arguments.out}: the average of {recipe}")


def _describe(arguments: argparse.Namespace) -> str:
    shares = (f"{share:g} {path.parent.name}/{path.name}" for path, share in arguments.parts)
    recipe = ", ".join(shares)
    if arguments.untouched:
        recipe += f"; then {arguments.untouched:g} of the untouched backbone"
    return recipe


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m models.average", description=__doc__)
    parser.add_argument("--out", type=_read_out, required=True, help="file ending in .safetensors")
    parser.add_argument("--untouched", type=_read_share, default=0.0, metavar="SHARE",
                        help="of the pretrained backbone in the result's")  # fmt: skip
    parser.add_argument("parts", nargs="+", type=_read_part, metavar="CHECKPOINT=SHARE")
    return parser


def _read_out(text: str) -> Path:
    if not text.endswith(".safetensors"):  # readers choose the format by the suffix
        raise argparse.ArgumentTypeError(f"{text!r} does not end in .safetensors")
    return Path(text)


def _read_share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0 to 1")
    return share


def _read_part(text: str) -> tuple[Path, float]:
    path, _, share = text.rpartition("=")
    if not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not CHECKPOINT=SHARE")
    try:
        return Path(path), float(share)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{share!r} is not a number") from None


if __name__ == "__main__":
    run_command(main)
