"""`python -m models.train --data FOLDER --out RUN [--recipe FILE] [--lr ...]`.

Writes `model.safetensors`, `recipe.json`, `metrics.csv` and the state to resume from to RUN.
"""

from pathlib import Path

from models.checkpoints.checkpoint import write_checkpoint
from models.checkpoints.files import read_file
from models.commands import command, run_command
from models.train.build import build_network, start_from
from models.train.command import RunContext, make_parser, read_run
from models.train.recipe import Recipe
from models.train.run import Run, RunFolder, seed_everything
from models.train.task import make_task


@command
def main(argv: list[str] | None = None) -> None:
    """Runs the command; returns 0, or 2 for a mistake in the request."""
    arguments = make_parser("python -m models.train", __doc__, Recipe).parse_args(argv)
    recipe, context = read_run(arguments, Recipe)
    score = train(context, recipe, arguments.init)
    print(f"{context.out / 'model.safetensors'}: {score:.2f} mAP on validation")


def train(context: RunContext, recipe: Recipe, init: Path | None = None) -> float:
    """Trains a network, writes its checkpoint and returns its mAP on validation, percent."""
    data = context.data
    start = None if init is None else read_file(init)
    fingerprint = "" if start is None else start.sha256
    photos = len(data.split("train"))
    identity = recipe.model_dump() | {
        "label_names": list(data.label_names),
        "photos": photos,
        "init": fingerprint,
    }
    folder = RunFolder(context.out, identity)
    seed_everything(recipe.seed)
    network = build_network(recipe, data, recipe.pretrained and init is None)
    if start is not None:
        print(f"{start.name}: took {start_from(network, start)}")
        start = None  # frees its tensors
    # The task shares tail and head with the network, whose frozen part never changes.
    task = make_task(network, recipe, context, fingerprint)
    run = Run(task, recipe, folder, context.device, recipe.mixed_precision)
    score = run.fit()["val_mAP_percent"]
    notes = {
        "training_data": f"{data.name}, {photos} photos",
        "val_mAP_percent": f"{score:.3f}",
        "recipe": recipe.model_dump_json(),
    }
    write_checkpoint(context.out / "model.safetensors", network.cpu(), data.label_names, notes)
    return score


if __name__ == "__main__":
    run_command(main)
