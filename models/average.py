"""`python -m models.average --out FILE A=0.4 B=0.6`: the mean weights of checkpoints.

The checkpoints must be fine-tuned one from the other: model soups (arXiv 2203.05482), with
`--untouched` WiSE-FT (arXiv 2109.01903).
"""

import argparse
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from torch import Tensor, nn

from models.checkpoints.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from models.checkpoints.description import CheckpointError
from models.checkpoints.pretrained import load_pretrained
from models.commands import command, run_command
from models.network import build_backbone


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


def _identify(checkpoint: Checkpoint) -> tuple[object, ...]:
    """Returns the facts that must be equal in checkpoints; dropout and image size may differ."""
    config = checkpoint.take_network().config
    head = config.head.model_copy(update={"dropout": 0.0})
    pixels = config.input.model_copy(update={"height": 1, "width": 1})
    return config.model_copy(update={"head": head, "input": pixels}), checkpoint.label_names


def _load_mean(module: nn.Module, states: Sequence[tuple[dict[str, Tensor], float]]) -> None:
    last, mean = states[-1][0], {}
    for key, tensor in last.items():
        if any(state[key].shape != tensor.shape for state, _ in states):
            raise CheckpointError("the networks are bound to different image sizes")
        if tensor.is_floating_point():  # a batch norm's counter is the last one's
            parts = [state[key].double() * share for state, share in states]
            tensor = sum(parts[1:], start=parts[0]).to(tensor.dtype)
        mean[key] = tensor
    module.load_state_dict(mean)


@command
def main(argv: list[str] | None = None) -> None:
    """Runs the command; returns 0, or 2 for a mistake in the request."""
    parser = argparse.ArgumentParser(prog="python -m models.average", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="file ending in .safetensors")
    add("--untouched", type=float, default=0.0, metavar="SHARE",
        help="of the pretrained backbone in the result's")  # fmt: skip
    add("parts", nargs="+", type=_read_part, metavar="CHECKPOINT=SHARE")
    given = parser.parse_args(argv)
    if given.out.suffix != ".safetensors":  # readers choose the format by the suffix
        parser.error(f"--out must end in .safetensors; it is {given.out}")
    if not 0 <= given.untouched <= 1:
        parser.error(f"--untouched must be from 0 to 1; it is {given.untouched}")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    averaged = average_checkpoints([(read_checkpoint(path), share) for path, share in given.parts])
    recipe = ", ".join(f"{share:g} {path.parent.name}/{path.name}" for path, share in given.parts)
    network = averaged.take_network()
    if share := given.untouched:
        untouched, backbone = build_backbone(network.config), network.backbone
        load_pretrained(untouched)
        _load_mean(backbone, [(untouched.state_dict(), share), (backbone.state_dict(), 1 - share)])
        recipe += f"; then {share:g} of the untouched backbone"
    notes = {**averaged.notes, "average": recipe}
    write_checkpoint(given.out, network, averaged.label_names or (), notes)
    print(f"{given.out}: the average of {recipe}")


def _read_part(text: str) -> tuple[Path, float]:
    path, _, share = text.rpartition("=")
    with suppress(ValueError):
        if path:
            return Path(path), float(share)
    raise argparse.ArgumentTypeError(f"{text!r} is not CHECKPOINT=SHARE")


if __name__ == "__main__":
    run_command(main)
