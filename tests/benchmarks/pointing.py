"""The pointing game: how often the peak of a label's map is in a box of that label.

    python -m tests.benchmarks.pointing --data FOLDER --gap FILE --checkpoint FILE --open-head FILE

Prints hits in percent over all pairs of a photo and a label of it, over pairs whose boxes cover
less than a quarter of the photo, and as the mean over labels. The bundle's maps come from the
service's pipeline. Compared methods: the centre, the decoder's mean attention, and class activation
maps (CAM) of a GAP head and of the names' votes.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from models.checkpoints.checkpoint import read_checkpoint
from models.checkpoints.open_head import read_open_head
from models.heads.attention import Attention
from models.heads.baselines import Gap
from models.heads.maps import Drawing
from models.heads.ml_decoder import MLDecoder
from models.network import Network
from models.text import read_text_encoder
from models.train.views import evaluation_transform
from service.labels.question import Question
from service.pipeline.pipeline import Pipeline, open_pipeline
from service.settings import Settings
from tests.benchmarks.servers import BUNDLE

Box = tuple[float, float, float, float]
"""Left, top, right and bottom as shares of the photo."""

CENTRE = np.array([[0, 0, 0], [0, 1, 0], [0, 0, 0]], np.float32)
SMALL = 0.25
ENLARGED = 8


@dataclass(frozen=True)
class Shown:
    """A label of a photo and its boxes."""

    photo: Path
    label: str
    boxes: tuple[Box, ...]

    def contains(self, x: float, y: float) -> bool:
        """Whether a point, in shares of the photo, is in a box."""
        return any(left <= x <= right and top <= y <= low for left, top, right, low in self.boxes)

    def cover(self) -> float:
        """Returns the share of the photo that the boxes cover."""
        places = (np.arange(50) + 0.5) / 50
        return float(np.mean([self.contains(x, y) for x in places for y in places]))


class TokenSource:
    """Tokens of photos from a torch network's backbone, cached."""

    def __init__(self, file: Path) -> None:
        self.checkpoint = read_checkpoint(file)
        self.network = cast("Network", self.checkpoint.network)
        self._known: dict[Path, Tensor] = {}

    def encode(self, photo: Path) -> Tensor:
        """Returns tokens float [1, S, C]."""
        if photo not in self._known:
            transform = evaluation_transform(self.network.config.input)
            with Image.open(photo) as picture:
                self._known[photo] = self.network.backbone(transform(picture.convert("RGB"))[None])
        return self._known[photo]


def read_shown(folder: Path, split: str, part: str) -> list[Shown]:
    """Reads the pairs of a split; `part` is `all` or one of two fixed halves of its photos."""
    images = json.loads((folder / "labels.json").read_text())["images"]
    files = sorted(name for name, entry in images.items() if entry["split"] == split)
    first = np.arange(len(files)) < len(files) // 2
    np.random.RandomState(1).shuffle(first)
    chosen = [part == "all" or own == (part == "first") for own in first]
    return [
        Shown(folder / "images" / file, label, tuple(tuple(box) for box in boxes))
        for file, use in zip(files, chosen, strict=True)
        for label, boxes in images[file].get("boxes", {}).items()
        if use and boxes
    ]


def find_peak(cells: NDArray[np.float32]) -> tuple[float, float]:
    """Returns x and y of the largest value of the enlarged map, in shares of the photo."""
    rows, columns = (ENLARGED * size for size in cells.shape)
    large = np.asarray(Image.fromarray(cells).resize((columns, rows), Image.Resampling.BICUBIC))
    row, column = np.unravel_index(large.argmax(), large.shape)
    return (float(column) + 0.5) / columns, (float(row) + 0.5) / rows


def shape(values: Tensor) -> NDArray[np.float32]:
    """Shapes values [S] to their square grid."""
    side = int(len(values) ** 0.5)
    return values.reshape(side, side).numpy().astype(np.float32)


def smooth(cells: NDArray[np.float32]) -> NDArray[np.float32]:
    """Smooths a map as `Drawing` does."""
    drawing = Drawing((cells.shape[0], cells.shape[1]))
    found: NDArray[np.float32] = (
        drawing.rows @ torch.from_numpy(cells) @ drawing.columns.T
    ).numpy()
    return found


async def draw_served(
    bundle: Path, pairs: list[Shown], *, trained: bool
) -> list[NDArray[np.float32]]:
    """Returns the maps that the service makes, of trained or of candidate labels."""
    pipeline = open_pipeline(
        Settings(bundle=bundle, device="cpu", label_store="memory", deadline_ms=600_000)
    )
    await pipeline.start()
    found: dict[tuple[Path, str], NDArray[np.float32]] = {}
    content = {pair.photo: pair.photo.read_bytes() for pair in pairs}
    for photo, data in content.items():
        names = tuple(pair.label for pair in pairs if pair.photo == photo)
        for label, cells in (await _explain(pipeline, data, names, trained)).items():
            found[photo, label] = cells
    await pipeline.drain()
    return [found[pair.photo, pair.label] for pair in pairs]


async def _explain(
    pipeline: Pipeline, photo: bytes, names: tuple[str, ...], trained: bool
) -> dict[str, NDArray[np.float32]]:
    question = Question(top_k=len(names), explain=True, candidate_labels=names)
    if trained:
        question = Question(top_k=len(names), explain=True, include=names, label_set=("trained",))
    prediction = await pipeline.predict(photo, await pipeline.select(question))
    made = zip(prediction.labels, prediction.explanations, strict=True)
    return {label.label: explanation.map for label, explanation in made}


def attend(attention: Attention, query: Tensor, memory: Tensor) -> Tensor:
    """Returns the mean attention of the heads of one projected query [1, D], float [S]."""
    width = (attention.num_heads, attention.head_width)
    keys = attention.key(memory)[0].unflatten(-1, width).transpose(0, 1)  # [heads, S, D / heads]
    scores = query.unflatten(-1, width).transpose(0, 1) @ keys.transpose(1, 2)
    return scores.softmax(dim=-1).mean(dim=0)[0]


def compare_trained(pairs: list[Shown], bundle: Path, checkpoint: Path, gap_file: Path) -> None:
    """Prints the hits on the labels of the trained head."""
    decoder = TokenSource(checkpoint)
    gap = TokenSource(gap_file)
    names = list(decoder.checkpoint.label_names or ())
    pairs = [pair for pair in pairs if pair.label in names]
    head = cast("MLDecoder", decoder.network.head)
    queries = head.layer.attention.project(head.layer.prepare(head.queries))
    weights = cast("Gap", gap.network.head).linear.weight
    columns = list(gap.checkpoint.label_names or ())
    cams = [shape(gap.encode(p.photo)[0] @ weights[columns.index(p.label)]) for p in pairs]
    report(
        "trained labels",
        pairs,
        {
            "centre": [CENTRE] * len(pairs),
            "CAM of GAP": cams,
            "CAM of GAP, smoothed as maps are": [smooth(cells) for cells in cams],
            "attention alone": [
                shape(
                    attend(
                        head.layer.attention,
                        queries[[names.index(p.label) // head.config.group_size]],
                        head.remember(decoder.encode(p.photo)),
                    )
                )
                for p in pairs
            ],
            "maps": asyncio.run(draw_served(bundle, pairs, trained=True)),
        },
    )


def compare_open(
    pairs: list[Shown], bundle: Path, checkpoint: Path, open_head: Path, text_encoder: Path | None
) -> None:
    """Prints the hits on candidate labels, all and those that were not trained."""
    encoder = TokenSource(checkpoint)
    head = read_open_head(open_head).head
    names = sorted({pair.label for pair in pairs})
    text = read_text_encoder(text_encoder)
    embeddings = text.embed_names(names, head.config.embedding_template)
    queries, width = head.encode_labels(embeddings), head.config.decoder_width
    methods: dict[str, list[NDArray[np.float32]]] = defaultdict(list)
    for pair in pairs:
        tokens, row = encoder.encode(pair.photo), names.index(pair.label)
        query = queries[[row], width : 2 * width]
        methods["centre"].append(CENTRE)
        if head.votes is not None:
            with torch.enable_grad():
                pooled = tokens.clone().requires_grad_()
                voted = head.votes(pooled, queries[[row], 2 * width :])
                (gradient,) = torch.autograd.grad(voted.sum(), pooled)
            methods["CAM of the names' votes"].append(shape((gradient * tokens).sum(dim=-1)[0]))
        attended = attend(head.layer.attention, query, head.remember(tokens))
        methods["attention alone"].append(shape(attended))
    methods["maps"] = asyncio.run(draw_served(bundle, pairs, trained=False))
    report("candidate labels", pairs, methods)
    trained = encoder.checkpoint.label_names or ()
    unseen = [i for i, pair in enumerate(pairs) if pair.label not in trained]
    report(
        "of these, not trained",
        [pairs[i] for i in unseen],
        {name: [maps[i] for i in unseen] for name, maps in methods.items()},
    )


def report(title: str, pairs: list[Shown], methods: dict[str, list[NDArray[np.float32]]]) -> None:
    """Prints the hits of each method."""
    small = [pair.cover() < SMALL for pair in pairs]
    print(f"\n{title + f', {len(pairs)} pairs':36} {'all':>6} {'small':>6} {'by label':>9}")
    for name, maps in methods.items():
        hits = [pair.contains(*find_peak(cells)) for pair, cells in zip(pairs, maps, strict=True)]
        of_label: dict[str, list[bool]] = defaultdict(list)
        for pair, hit in zip(pairs, hits, strict=True):
            of_label[pair.label].append(hit)
        by_label = percent(percent(found) / 100 for found in of_label.values())
        of_small = percent(hit for hit, is_small in zip(hits, small, strict=True) if is_small)
        print(f"{name:36} {percent(hits):6.1f} {of_small:6.1f} {by_label:9.1f}", flush=True)


def percent(shares: Iterable[float]) -> float:
    """Returns the mean of shares in percent."""
    return float(np.mean(list(shares))) * 100


def main(  # noqa: PLR0913 - a parameter for each flag
    *,
    data: Annotated[Path, typer.Option(help="Labelled folder with boxes.")],
    checkpoint: Annotated[Path, typer.Option(help="Of the bundle's trained head.")],
    open_head: Annotated[Path, typer.Option(help="Of the bundle's open head.")],
    gap: Annotated[Path, typer.Option(help="Checkpoint with a GAP head.")],
    split: str = "test",
    part: Annotated[str, typer.Option(help="all, or the first or second half.")] = "all",
    bundle: Path = BUNDLE,
    text_encoder: Annotated[Path | None, typer.Option(help="Folder; default: packaged.")] = None,
) -> None:
    """Plays the pointing game."""
    pairs = read_shown(data, split, part)
    with torch.no_grad():
        compare_trained(pairs, bundle, checkpoint, gap)
        compare_open(pairs, bundle, checkpoint, open_head, text_encoder)


if __name__ == "__main__":
    typer.run(main)
