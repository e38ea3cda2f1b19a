"""`python -m models.train_open --data FOLDER --checkpoint FILE --out RUN ...`.

Writes `open.safetensors`, `recipe.json`, `metrics.csv` and the state to resume from to RUN.
"""

from collections.abc import Collection
from pathlib import Path

import torch

from models.checkpoints.description import CheckpointError
from models.checkpoints.open_head import (
    OpenHeadCheckpoint,
    Origin,
    fingerprint_encoder,
    read_open_head,
    write_open_head,
)
from models.commands import command, run_command
from models.config import ZeroShotMLDecoderConfig
from models.data.labelled_folder import read_labelled_folder
from models.heads.zero_shot import ZeroShotMLDecoder
from models.text import read_text_encoder
from models.train.command import RunContext, make_parser, read_run
from models.train.run import Run, RunFolder, seed_everything
from models.train_open.names import choose_captions, choose_names
from models.train_open.recipe import OpenRecipe
from models.train_open.task import (
    NameEmbeddings,
    OpenTask,
    embed_captions,
    match_labels,
    read_photos,
)
from models.train_open.teacher import Sources, read_sources

# Fields in which a head may differ from the one that it starts from.
_WITHOUT_WEIGHTS = ("dropout", "embedding_encoder")


@command
def main(argv: list[str] | None = None) -> None:
    """Runs the command; returns 0, or 2 for a mistake in the request."""
    parser = make_parser("python -m models.train_open", __doc__, OpenRecipe)
    add = parser.add_argument
    add("--checkpoint", type=Path, required=True, help="its encoder is used and stays as it is")
    add("--text-encoder", type=Path, help="folder; unset takes the installed package's")
    add("--hold-out", type=Path, action="append", default=[], help="labelled folder: no concept "
        "of such a name is trained on; may be repeated")  # fmt: skip
    arguments = parser.parse_args(argv)
    recipe, context = read_run(arguments, OpenRecipe)
    hold_out = [
        name for path in arguments.hold_out for name in read_labelled_folder(path).label_names
    ]
    text = read_text_encoder(arguments.text_encoder)
    init = None if arguments.init is None else read_open_head(arguments.init)
    figures = train(context, recipe, read_sources(arguments.checkpoint, text), hold_out, init)
    summary = ", ".join(f"{name} {value:.2f}" for name, value in figures.items())
    print(f"{context.out / 'open.safetensors'}: {summary}")


def train(
    context: RunContext,
    recipe: OpenRecipe,
    sources: Sources,
    hold_out: Collection[str],
    init: OpenHeadCheckpoint | None = None,
) -> dict[str, float]:
    """Trains an open head, writes its checkpoint and returns figures on validation, percent.

    `hold_out` are names whose concepts are not trained on; `init` is a head to start from.
    """
    data, text = context.data, sources.text
    images = data.split("train")
    seed_everything(recipe.seed)
    names = choose_names(data, hold_out)
    encoder = fingerprint_encoder(sources.encoder)
    identity = recipe.model_dump() | {
        "label_names": list(names.labels),
        "concept_names": list(names.concepts),
        "photos": len(images),
        "checkpoint": encoder,
        "text_encoder": text.sha256,
        "init": "" if init is None else fingerprint_encoder(init.head),
    }
    folder = RunFolder(context.out, identity)
    train_photos, val_photos = read_photos(context, recipe, sources, names)
    groups = (names.labels, names.concepts, names.held_out, sources.teacher.names)
    embeddings = NameEmbeddings(*(text.embed_names(group, recipe.template) for group in groups))
    captions = embed_captions(sources, choose_captions(data, images, hold_out))
    seed_everything(recipe.seed)
    head = build_open_head(recipe, sources, embeddings.teacher)
    if init is not None:
        init.check_text_encoder(text)
        start_from(head, init.head)
    task = OpenTask(
        network=head,
        names=embeddings,
        train=train_photos,
        captions=captions,
        val=val_photos,
        trained=match_labels(sources, names),
        recipe=recipe,
        device=context.device,
    )
    figures = Run(task, recipe, folder, context.device).fit()
    task.center_votes()
    origin = Origin(
        encoder_fingerprint=encoder,
        text_encoder_sha256=text.sha256,
        label_names=names.labels,
        concept_names=names.concepts,
        notes={
            "training_data": f"{data.name}, {len(images)} photos",
            "recipe": recipe.model_dump_json(),
            **{name: f"{value:.3f}" for name, value in figures.items()},
        },
    )
    write_open_head(context.out / "open.safetensors", head.cpu(), origin)
    return figures


def build_open_head(
    recipe: OpenRecipe, sources: Sources, teacher_names: torch.Tensor
) -> ZeroShotMLDecoder:
    """Builds a head whose voting classifier starts as the teacher's, with names [P, E]."""
    chosen = {"decoder_width", "num_heads", "feedforward_width", "dropout"}
    head = ZeroShotMLDecoder(
        ZeroShotMLDecoderConfig(
            **recipe.model_dump(include=chosen),
            encoder_width=sources.encoder.width,
            embedding_width=sources.text.width,
            embedding_encoder=sources.text.name,
            embedding_template=recipe.template,
            num_prototypes=len(teacher_names),
        )
    )
    assert head.votes is not None
    head.votes.classifier.load_state_dict(sources.teacher.classifier.state_dict())
    head.votes.names.copy_(teacher_names)
    head.votes.sharpness.fill_(recipe.sharpness_of_votes)
    # Most labels are absent: starting at low scores saves the first epoch.
    torch.nn.init.constant_(head.pool.bias, -3.0)
    return head


def start_from(head: ZeroShotMLDecoder, init: ZeroShotMLDecoder) -> None:
    """Loads the weights of an equally built head; the sharpness of votes is the recipe's."""
    for name, wanted in head.config:
        given = getattr(init.config, name)
        if given != wanted and name not in _WITHOUT_WEIGHTS:
            raise CheckpointError(f"the head to start from has {name} {given!r}, not {wanted!r}")
    state = {name: value for name, value in init.state_dict().items() if name != "votes.sharpness"}
    head.load_state_dict(state, strict=False)


if __name__ == "__main__":
    run_command(main)
