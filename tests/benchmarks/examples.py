"""Accuracy of labels that learn from photos, next to their texts alone, over HTTP.

python -m tests.benchmarks.examples --data FOLDER [--split test --except FOLDER] [--counts 1,2,5]
python -m tests.benchmarks.examples --data FOLDER [--except FOLDER] --tags
"""

import csv
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import httpx2 as httpx
import numpy as np
import torch
import typer
from numpy.typing import NDArray

from models.data.labelled_folder import read_labelled_folder
from models.data.records import LabelledFolder, LabelledImage
from models.metrics import average_precisions
from service.calibration import bin_scores, measure_error
from tests.benchmarks.accuracy import request_scores
from tests.benchmarks.servers import BUNDLE, PHOTO, Server, list_ours, make_multipart, run_server

_SET = "taught"
_COLUMNS = ("mAP", "precision", "recall", "calibration error")
_COMMON = 10  # photos
_MOST = 200  # of a request

app = typer.Typer(help=__doc__)


@app.command()
def compare(  # noqa: PLR0913 - a parameter for each flag
    *,
    data: Annotated[Path, typer.Option(help="Labelled folder.")],
    split: Annotated[str, typer.Option(help="Split that is scored; all without.")] = "",
    excluded: Annotated[
        Path | None, typer.Option("--except", help="Labelled folder whose labels do not count.")
    ] = None,
    counts: Annotated[str, typer.Option(help="Examples of each label, ascending.")] = "1,2,4",
    draws: Annotated[int, typer.Option(help="Random choices of the examples.")] = 10,
    tags: Annotated[bool, typer.Option("--tags", help="Learn all labels at once, too.")] = False,
    folds: Annotated[int, typer.Option(help="Parts of the photos, with --tags.")] = 4,
    bundle: Annotated[Path, typer.Option(help="Bundle with a background.")] = BUNDLE,
    precision: str = "auto",
) -> None:
    """Prints means over the draws, in percent or as shares, with the range of the mAP.

    The labels are the folder's that enough photos show. A draw teaches all of them in one set, with
    photos of any split, and scores the photos that are no label's example. Rows of text are of the
    same photos. Precision and recall are of the labels that reach the thresholds of the answer.
    """
    folder = read_labelled_folder(data)
    others = read_labelled_folder(excluded).label_names if excluded else ()
    numbers = [int(count) for count in counts.split(",")]
    shown = {
        name: list(dict.fromkeys(image.path for image in folder.images if name in image.labels))
        for name in folder.label_names
        if name not in others
    }
    server = list_ours(bundle, precision, PHOTO.read_bytes())
    server = replace(server, request=make_multipart(PHOTO.read_bytes()))
    if tags:
        _compare_tags(folder, data, shown, folds, server)
        return
    names = [name for name, paths in shown.items() if len(paths) >= max(numbers)]
    columns = [folder.label_names.index(name) for name in names]
    scored = folder.split(split) if split else folder.images
    targets = folder.targets(scored)[:, columns]
    measured: dict[tuple[int, str], list[list[float]]] = defaultdict(list)
    with run_server(server) as running, httpx.Client(timeout=120) as client:
        url = f"{running.address}/labels"
        for draw in range(draws):
            generator = np.random.default_rng(draw)
            drawn = {name: generator.permutation(np.array(shown[name])) for name in names}
            client.post(url, json={"name": _SET, "labels": names}).raise_for_status()
            if draw == 0:
                texts = _ask(running.address, names, scored)
            for before, count in pairwise([0, *numbers]):
                _teach(client, url, {name: drawn[name][before:count] for name in names})
                used = {path for name in names for path in drawn[name][:count]}
                left = [row for row, image in enumerate(scored) if image.path not in used]
                answers = _ask(running.address, names, [scored[row] for row in left])
                for kind, rows in (("text", texts[left]), ("examples", answers)):
                    measured[count, kind].append([len(left), *_measure(rows, targets[left])])
            client.delete(f"{url}/{_SET}").raise_for_status()
    print(f"{folder.name}: {len(names)} labels, draws: {draws}")
    print(f"{'':16} {'photos':>7}  " + "  ".join(_COLUMNS))
    for (count, kind), figures in measured.items():
        photos, mean_ap, *rest = np.mean(figures, axis=0).tolist()
        title = kind if kind == "text" else f"{count} {kind}"
        low, high = np.array(figures)[:, 1].min(), np.array(figures)[:, 1].max()
        shares = "  ".join(f"{value:6.3f}" for value in rest)
        print(f"{title:16} {photos:7.0f}  {mean_ap:5.1f} ({low:.1f} to {high:.1f})  {shares}")


def _compare_tags(
    folder: LabelledFolder, data: Path, shown: Mapping[str, list[Path]], folds: int, server: Server
) -> None:
    """Prints means over the folds: of labels that both a fold and the other photos show."""
    groups = np.random.default_rng(0).permutation(len(folder.images)) % folds
    measured: dict[str, list[list[float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as place, httpx.Client(timeout=120) as client:
        table, store = Path(place, "tags.csv"), ("--label-store", str(Path(place, "labels.db")))
        with run_server(replace(server, command=(*server.command, *store))) as running:
            url = f"{running.address}/labels"
            for fold in range(folds):
                asked = [i for i, group in zip(folder.images, groups, strict=True) if group == fold]
                left = [image for image in folder.images if image not in asked]
                positives = {n: [i.path for i in left if n in i.labels] for n in shown}
                names = [n for n in shown if 0 < len(positives[n]) < len(shown[n])]
                sets = {kind: f"{kind}-{fold}" for kind in ("text", "examples", "fit")}
                client.post(url, json={"name": sets["text"], "labels": names}).raise_for_status()
                _teach(client, url, {n: positives[n][:_MOST] for n in names}, sets["examples"])
                with table.open("w", newline="", encoding="utf-8") as file:
                    tags = [(i.path.relative_to(data), n) for i in left for n in i.labels]
                    csv.writer(file).writerows([("path", "tag"), *tags])
                learn = f"labels learn {sets['fit']} --least 1 --all --tags".split()
                # The interpreter and module; bundle, precision and device.
                command = [*server.command[:3], *learn, table, data, *server.command[6:12], *store]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                while not client.get(f"{url}/{sets['fit']}").is_success:  # until the next poll
                    time.sleep(0.1)
                columns = [folder.label_names.index(name) for name in names]
                targets = folder.targets(tuple(asked))[:, columns]
                common = np.array([len(shown[name]) >= _COMMON for name in names])
                for kind, label_set in sets.items():
                    query: dict[str, object] = {"label_set": label_set, "include": names}
                    answers = request_scores(running.address, query, names, asked)
                    mean_ap, *shares = _measure(answers, targets)
                    of_common = np.nan
                    if common.any():
                        of_common = _measure(answers[:, common], targets[:, common])[0]
                    f1 = 2 / (1 / shares[0] + 1 / shares[1])
                    measured[kind].append([len(names), mean_ap, of_common, f1, *shares])
    print(f"labels, mAP, of {_COMMON} photos or more, micro-F1, {', '.join(_COLUMNS[1:])}")
    for kind, rows in measured.items():
        print(f"{kind:8}", *(f"{value:8.3f}" for value in np.mean(rows, axis=0).tolist()))


def _teach(
    client: httpx.Client, url: str, examples: Mapping[str, Iterable[Path]], label_set: str = _SET
) -> None:
    def teach_one(name: str) -> None:
        files = [("positive", path.read_bytes()) for path in examples[name]]
        answer = client.post(f"{url}/{label_set}/examples", params={"label": name}, files=files)
        if not answer.is_success:
            raise SystemExit(answer.text)

    with ThreadPoolExecutor(4) as clients:
        list(clients.map(teach_one, examples))


def _ask(url: str, names: Sequence[str], images: Sequence[LabelledImage]) -> NDArray[np.float64]:
    return request_scores(url, {"label_set": _SET}, names, images)


def _measure(answers: NDArray[np.float64], targets: NDArray[np.int64]) -> tuple[float, ...]:
    """Returns the figures of `_COLUMNS`, for answers [n, L, 2] of `request_scores`."""
    scores, thresholds = answers[..., 0], answers[..., 1]
    counted = targets.any(axis=0)
    precisions = average_precisions(torch.from_numpy(scores), torch.from_numpy(targets))[counted]
    hits = targets[scores >= thresholds]
    error = measure_error(bin_scores(scores, targets))
    return float(precisions.mean()), hits.mean(), hits.sum() / targets.sum(), error


if __name__ == "__main__":
    app()
