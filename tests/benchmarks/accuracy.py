"""Accuracy on labelled folders: the mAP of a running service, and where attention maps point.

python -m tests.benchmarks.accuracy map --data FOLDER [--open --except FOLDER] [--calibration]
python -m tests.benchmarks.accuracy pointing --help
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import compress
from pathlib import Path
from typing import Annotated, cast
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from models.checkpoints.checkpoint import read_checkpoint
from models.checkpoints.open_head import read_open_head
from models.data import LabelledImage, read_labelled_folder
from models.heads.attention import Attention
from models.heads.baselines import Gap
from models.heads.maps import Drawing
from models.heads.ml_decoder import MLDecoder
from models.metrics import average_precisions
from models.network import Network
from models.text import read_text_encoder
from models.train.views import evaluation_transform
from service.calibration import bin_scores, measure_error
from service.pipeline.pipeline import open_pipeline
from service.question import Question
from service.settings import Settings
from tests.benchmarks.servers import BUNDLE

app = typer.Typer(help=__doc__)

Map = NDArray[np.float32]
"""Values [rows, columns] over the photo."""
Box = tuple[float, float, float, float]
"""Left, top, right and bottom as shares of the photo."""


@app.command("map")
def measure_map(  # noqa: PLR0913 - a parameter for each flag
    *,
    data: Annotated[Path, typer.Option(help="Labelled folder.")],
    split: str = "test",
    url: str = "http://127.0.0.1:8000",
    open_labels: Annotated[
        bool, typer.Option("--open", help="Send the folder's names as candidate labels.")
    ] = False,
    excluded: Annotated[
        Path | None, typer.Option("--except", help="Labelled folder whose labels do not count.")
    ] = None,
    min_positives: Annotated[int, typer.Option(help="Photos of a label that counts.")] = 1,
    label_set: Annotated[str, typer.Option(help="Registered set to ask, without --open.")] = (
        "trained"
    ),
    calibration: Annotated[
        bool, typer.Option("--calibration", help="Print the reliability of scores too.")
    ] = False,
) -> None:
    """Prints the average precisions of a running service over HTTP, in percent.

    Without `--open` they are of the folder's names in a label set. Calibration is of the same
    names: the expected calibration error over ten equal bins of scores, and precision and recall of
    the labels that reach the thresholds of the answer.
    """
    folder = read_labelled_folder(data)
    others = read_labelled_folder(excluded).label_names if excluded else ()
    names, images = folder.label_names, folder.split(split)
    query: dict[str, object] = {"candidate_labels": names}
    if not open_labels:
        with urlopen(f"{url}/labels/{label_set}") as answer:
            known = {label["name"] for label in json.load(answer)["labels"]}
        names = tuple(name for name in names if name in known)
        query = {"label_set": label_set, "include": names}
    columns = [folder.label_names.index(name) for name in names]

    def request_scores(image: LabelledImage) -> list[tuple[float, float]]:
        request = Request(
            f"{url}/predict?{urlencode({**query, 'top_k': len(names)}, doseq=True)}",
            data=image.path.read_bytes(),
            headers={"Content-Type": "image/jpeg"},
        )
        with urlopen(request) as answer:
            found = {label["label"]: label for label in json.load(answer)["labels"]}
        return [(found[name]["score"], found[name]["threshold"]) for name in names]

    with ThreadPoolExecutor(4) as clients:
        answers = np.array(list(clients.map(request_scores, images)))  # [n, L, 2]
    scores, thresholds = answers[..., 0], answers[..., 1]
    targets = folder.targets(images)[:, columns]
    counted = [
        column
        for column, positives in enumerate(targets.sum(axis=0).tolist())
        if names[column] not in others and positives >= min_positives
    ]
    found = average_precisions(torch.from_numpy(scores), torch.from_numpy(targets))[counted]
    for column, value in zip(counted, found.tolist(), strict=True):
        print(f"{names[column]:20} {value:6.2f}")
    print(f"{'mAP':20} {float(found.mean()):6.2f}  ({len(counted)} labels, {len(images)} photos)")
    if calibration:
        kept = [column for column, name in enumerate(names) if name not in others]
        _print_calibration(scores[:, kept], thresholds[:, kept], targets[:, kept])


def _print_calibration(
    scores: NDArray[np.float64], thresholds: NDArray[np.float64], targets: NDArray[np.int64]
) -> None:
    """Prints figures of scores, their thresholds and targets [n, L]."""
    bins = bin_scores(scores, targets)
    print(f"\n{'calibration error':20} {measure_error(bins):6.4f}  ({targets.shape[1]} labels)")
    print(f"{'scores from':20} {'mean':>6} {'right':>6}")
    for number, each in enumerate(bins):
        row = f"{each.mean_score:6.3f} {each.share_right:6.3f}  ({each.scores} scores)"
        print(f"{number / len(bins):<20.1f} {row}")
    high = scores >= 0.3
    mean, right = float(scores[high].mean()), float(targets[high].mean())
    print(f"{'0.3 and more':20} {mean:6.3f} {right:6.3f}  ({int(high.sum())} scores)")
    answered = scores >= thresholds
    hits = int(targets[answered].sum())
    precision = hits / answered.sum()
    print(f"{'answered: precision':20} {precision:6.3f}  ({int(answered.sum())} labels)")
    print(f"{'answered: recall':20} {hits / targets.sum():6.3f}  ({int(targets.sum())} shown)")


@app.command()
def pointing(  # noqa: PLR0913 - a parameter for each flag
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
    """Plays the pointing game: how often the peak of a label's map is in a box of that label.

    Prints hits in percent over all pairs of a photo and a label of it, over pairs whose boxes cover
    less than a quarter of the photo, and as the mean over labels. Methods besides the service's
    maps: the centre, the decoder's mean attention, and class activation maps (CAM) of a GAP head
    and of the names' votes.
    """
    pairs = _read_pairs(data, split, part)
    with torch.no_grad():
        _compare_trained(pairs, bundle, checkpoint, gap)
        _compare_open(pairs, bundle, checkpoint, open_head, text_encoder)


@dataclass(frozen=True)
class Pair:
    photo: Path
    label: str
    boxes: tuple[Box, ...]

    def contains(self, x: float, y: float) -> bool:
        return any(left <= x <= right and top <= y <= low for left, top, right, low in self.boxes)

    def is_small(self) -> bool:
        """Whether the boxes cover less than a quarter of the photo."""
        places = (np.arange(50) + 0.5) / 50
        return float(np.mean([self.contains(x, y) for x in places for y in places])) < 0.25


def _read_pairs(folder: Path, split: str, part: str) -> list[Pair]:
    images = json.loads((folder / "labels.json").read_text())["images"]
    files = sorted(name for name, entry in images.items() if entry["split"] == split)
    first = np.arange(len(files)) < len(files) // 2
    np.random.RandomState(1).shuffle(first)
    return [
        Pair(folder / "images" / file, label, tuple(tuple(box) for box in boxes))
        for file, is_first in zip(files, first, strict=True)
        for label, boxes in images[file].get("boxes", {}).items()
        if boxes and (part == "all" or is_first == (part == "first"))
    ]


def _compare_trained(pairs: list[Pair], bundle: Path, checkpoint: Path, gap_file: Path) -> None:
    decoder, gap = TokenSource(checkpoint), TokenSource(gap_file)
    names, columns = (list(source.checkpoint.label_names or ()) for source in (decoder, gap))
    pairs = [pair for pair in pairs if pair.label in names]
    head, attention = cast("MLDecoder", decoder.network.head), decoder.network.head.layer.attention
    queries = attention.project(head.layer.prepare(head.queries))
    weights = cast("Gap", gap.network.head).linear.weight
    methods = defaultdict[str, list[Map]](list)
    for pair in pairs:
        cam = _to_grid(gap.encode(pair.photo)[0] @ weights[columns.index(pair.label)])
        drawing = Drawing((cam.shape[0], cam.shape[1]))
        smooth = drawing.rows @ torch.from_numpy(cam) @ drawing.columns.T
        query = queries[[names.index(pair.label) // head.config.group_size]]
        attended = _attend(attention, query, head.remember(decoder.encode(pair.photo)))
        methods["centre"].append(_CENTRE)
        methods["CAM of GAP"].append(cam)
        methods["CAM of GAP, smoothed as maps are"].append(smooth.numpy())
        methods["attention alone"].append(_to_grid(attended))
    methods["maps"] = asyncio.run(_draw_served(bundle, pairs, trained=True))
    _report("trained labels", pairs, methods)


def _compare_open(
    pairs: list[Pair], bundle: Path, checkpoint: Path, open_head: Path, text_encoder: Path | None
) -> None:
    encoder, head = TokenSource(checkpoint), read_open_head(open_head).head
    names = sorted({pair.label for pair in pairs})
    text = read_text_encoder(text_encoder)
    embeddings = text.embed_names(names, head.config.embedding_template)
    queries, width = head.encode_labels(embeddings), head.config.decoder_width
    methods = defaultdict[str, list[Map]](list)
    for pair in pairs:
        tokens, row = encoder.encode(pair.photo), names.index(pair.label)
        methods["centre"].append(_CENTRE)
        if head.votes is not None:
            with torch.enable_grad():
                pooled = tokens.clone().requires_grad_()
                voted = head.votes(pooled, queries[[row], 2 * width :])
                (gradient,) = torch.autograd.grad(voted.sum(), pooled)
            cam = _to_grid((gradient * tokens).sum(dim=-1)[0])
            methods["CAM of the names' votes"].append(cam)
        query, memory = queries[[row], width : 2 * width], head.remember(tokens)
        methods["attention alone"].append(_to_grid(_attend(head.layer.attention, query, memory)))
    methods["maps"] = asyncio.run(_draw_served(bundle, pairs, trained=False))
    _report("candidate labels", pairs, methods)
    trained = encoder.checkpoint.label_names or ()
    unseen = [i for i, pair in enumerate(pairs) if pair.label not in trained]
    untrained = {name: [maps[i] for i in unseen] for name, maps in methods.items()}
    _report("of these, not trained", [pairs[i] for i in unseen], untrained)


class TokenSource:
    """A torch network; `encode` returns a photo's tokens float [1, S, C] and caches them."""

    def __init__(self, file: Path) -> None:
        self.checkpoint = read_checkpoint(file)
        network = self.network = cast("Network", self.checkpoint.network)
        transform = evaluation_transform(network.config.input)

        @cache
        def encode(photo: Path) -> Tensor:
            with Image.open(photo) as picture:
                return network.backbone(transform(picture.convert("RGB"))[None])

        self.encode = encode


def _attend(attention: Attention, query: Tensor, memory: Tensor) -> Tensor:
    """Returns the mean attention of the heads of one projected query [1, D], float [S]."""
    width = (attention.num_heads, attention.head_width)
    keys = attention.key(memory)[0].unflatten(-1, width).transpose(0, 1)  # [heads, S, D / heads]
    scores = query.unflatten(-1, width).transpose(0, 1) @ keys.transpose(1, 2)
    return scores.softmax(dim=-1).mean(dim=0)[0]


_CENTRE = np.array([[0, 0, 0], [0, 1, 0], [0, 0, 0]], np.float32)


def _to_grid(values: Tensor) -> Map:
    side = int(len(values) ** 0.5)
    return values.reshape(side, side).numpy().astype(np.float32)


async def _draw_served(bundle: Path, pairs: list[Pair], *, trained: bool) -> list[Map]:
    """Returns the maps that the service makes, of trained or of candidate labels."""
    settings = Settings(bundle=bundle, device="cpu", label_store="memory", deadline_ms=600_000)
    pipeline = open_pipeline(settings)
    await pipeline.start()
    found: dict[tuple[Path, str], Map] = {}
    for photo in dict.fromkeys(pair.photo for pair in pairs):
        names = tuple(pair.label for pair in pairs if pair.photo == photo)
        labels = {"include": names, "label_set": ("trained",)}
        labels = labels if trained else {"candidate_labels": names}
        question = Question(top_k=len(names), explain=True, **labels)  # type: ignore[arg-type]
        selection = await pipeline.select(question)
        prediction = await pipeline.predict(photo.read_bytes(), selection)
        for label, explanation in zip(prediction.labels, prediction.explanations, strict=True):
            found[photo, label.label] = explanation.map
    await pipeline.drain()
    return [found[pair.photo, pair.label] for pair in pairs]


def _report(title: str, pairs: list[Pair], methods: dict[str, list[Map]]) -> None:
    small = [pair.is_small() for pair in pairs]
    print(f"\n{title + f', {len(pairs)} pairs':36} {'all':>6} {'small':>6} {'by label':>9}")
    for name, maps in methods.items():
        hits = [pair.contains(*_find_peak(cells)) for pair, cells in zip(pairs, maps, strict=True)]
        of_label = defaultdict[str, list[bool]](list)
        for pair, hit in zip(pairs, hits, strict=True):
            of_label[pair.label].append(hit)
        means = (hits, list(compress(hits, small)), [np.mean(found) for found in of_label.values()])
        every, of_small, by_label = (100 * float(np.mean(found)) for found in means)
        print(f"{name:36} {every:6.1f} {of_small:6.1f} {by_label:9.1f}", flush=True)


def _find_peak(cells: Map) -> tuple[float, float]:
    """Returns x and y of the largest value of the map, enlarged 8 times, in shares of the photo."""
    rows, columns = (8 * size for size in cells.shape)
    large = np.asarray(Image.fromarray(cells).resize((columns, rows), Image.Resampling.BICUBIC))
    row, column = np.unravel_index(large.argmax(), large.shape)
    return (float(column) + 0.5) / columns, (float(row) + 0.5) / rows


if __name__ == "__main__":
    app()
