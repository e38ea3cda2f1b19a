"""`ml-decoder labels calibrate` with a bundle and a store."""

import json
import math
import os
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.calibration import find_thresholds
from service.cli import calibrate as calibrating
from service.pipeline.pipeline import Pipeline
from tests.service.cli.conftest import Run, assert_refused
from tests.service.pipeline.conftest import make_learnt
from tests.support.label_store import define
from tests.support.photos import make_photo
from tests.support.tiny_bundle import random_label_set

Photos = dict[str, bytes]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "photos" / "images").mkdir(parents=True)
    return tmp_path / "photos"


@pytest.fixture
def calibrate(run_open: Run, folder: Path) -> Run:
    """Runs the command on the set `zoo` of `yak` and `caf\u00e9`."""
    run_open("labels", "add", "zoo", "--label", "yak", "--label", "caf\u00e9")
    return partial(run_open, "labels", "calibrate", "zoo", "--photos", folder)


def write_folder(
    folder: Path, photos: Photos, *labels: str, shown: Iterable[str] | None = None
) -> None:
    """Writes photos, those of `shown`, or all, with all of the labels."""
    shown = photos if shown is None else shown
    for name, content in photos.items():
        (folder / "images" / name).write_bytes(content)
    images = {name: {"split": "val", "labels": list(labels) * (name in shown)} for name in photos}
    listing = {"name": "zoo", "label_names": labels, "images": images}
    (folder / "labels.json").write_text(json.dumps(listing))


def make_photos(count: int = 6) -> Photos:
    return {f"{seed}.png": make_photo(seed) for seed in range(count)}


def score_yak(run: Run, folder: Path) -> dict[str, float]:
    """Returns the score of `yak` on each photo, best first."""
    flags = ("--label-set", "zoo", "--include", "yak", "--top-k", 1, "--json")
    _, out, _ = run("predict", folder / "images", *flags)
    records = map(json.loads, out.splitlines())
    scores = {Path(record["photo"]).name: record["labels"][0]["score"] for record in records}
    return dict(sorted(scores.items(), key=lambda item: -item[1]))


def test_calibrate_leaves_out_photos_that_cannot_be_used(calibrate: Run, folder: Path) -> None:
    names = ["junk.jpg", "missing.jpg", "pipe.jpg"]
    photos, labels = make_photos() | dict.fromkeys(names, b"junk"), ("yak", " cafe\u0301")
    write_folder(folder, photos, *labels, shown=make_photos())
    for name in names[1:]:
        (folder / "images" / name).unlink()
    os.mkfifo(folder / "images" / "pipe.jpg")
    code, out, err = calibrate("--json")
    assert (code, json.loads(out)["left_out"]) == (1, 3)
    assert list(json.loads(out)["thresholds"]) == ["yak", "caf\u00e9"]  # normalised
    assert [line.partition(": ")[0] for line in err.splitlines()] == [
        str(folder / "images" / name) for name in names
    ]
    code, out, _ = calibrate()
    assert (code, out.splitlines()[-1]) == (1, "3 photos left out")


def test_calibrate_needs_five_usable_photos(calibrate: Run, folder: Path) -> None:
    photos = make_photos()
    write_folder(folder, dict.fromkeys(photos, b"junk"), "yak", shown=photos)
    reason = f"none of the photos can be used: 6 left out, such as {folder}/images/0.png: The file"
    assert_refused(calibrate, reason)
    for name in list(photos)[:4]:
        (folder / "images" / name).write_bytes(photos[name])
    reason = f"no label of the set zoo has 5 photos in {folder}; 2 left out, such as "
    assert_refused(calibrate, reason)
    (folder / "images" / "4.png").write_bytes(photos["4.png"])
    assert calibrate()[0] == 1


def test_calibrate_refuses_arguments_before_scoring(
    calibrate: Run, run_open: Run, folder: Path
) -> None:
    assert_refused(calibrate, "No such file", "--photos", folder / "none")
    write_folder(folder, {"absent.png": b""}, "crow", shown=[])
    assert_refused(calibrate, f"{folder} has no photo of the split vall", "--split", "vall")
    assert_refused(calibrate, f"{folder} has no label of the set zoo", "--split", "val")
    assert_refused(calibrate, "--precision-target", "--precision-target", 1.5)
    run = partial(run_open, "labels", "calibrate")
    assert_refused(run, "is read-only", "everyday", "--photos", folder)
    assert_refused(run, "no such label set", "none", "--photos", folder)


@pytest.mark.parametrize(
    ("listing", "reason"),
    [
        ("{", "labels.json: Invalid JSON: EOF while parsing an object at line 1 column 1"),
        ('{"images": {}}', "labels.json: label_names: Field required"),
        ('{"label_names": ["a", ""], "images": {}}', "labels.json: label_names.1: Text should not"),
        (
            '{"label_names": ["yak"], "images": {"a.png": {"labels": ["Yak"]}}}',
            "label_names does not contain the label Yak",
        ),
    ],
)
def test_calibrate_names_the_error_in_labels_json(
    calibrate: Run, folder: Path, listing: str, reason: str
) -> None:
    (folder / "labels.json").write_text(listing)
    assert_refused(calibrate, reason)


def test_calibrate_leaves_a_set_that_was_changed_meanwhile(
    calibrate: Run, run_open: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(folder, make_photos(), "yak")
    score = calibrating._score

    async def score_while_the_set_changes(pipeline: Pipeline, *arguments: Any) -> Any:
        scores = await score(pipeline, *arguments)
        newer = define("zoo", "yak", "crow")
        await pipeline.catalogue.writable("zoo").register(newer, replace=True)
        return scores

    with monkeypatch.context() as patch:
        patch.setattr(calibrating, "_score", score_while_the_set_changes)
        reason = "zoo was changed while its photos were scored; calibrate it again"
        assert_refused(calibrate, reason)
    assert '"zoo", "version": "2"' in run_open("labels", "list", "--json")[1]
    assert calibrate()[0] == 0


def test_calibrate_makes_scores_probabilities_and_converts_other_thresholds(
    run_open: Run, folder: Path
) -> None:
    photos, table = make_photos(80), folder / "zoo.csv"
    table.write_text("name,threshold\nyak,\ngnu,0.7\ncat,\n")
    run_open("labels", "add", "zoo", "--file", table)
    write_folder(folder, photos, "yak", shown=[])
    before = score_yak(run_open, folder)
    # Half of the 40 photos with the best scores, and one in ten of the others.
    shown = {*list(before)[:40:2], *list(before)[40::10]}
    write_folder(folder, photos, "yak", shown=shown)
    calibrate = ("labels", "calibrate", "zoo", "--photos", folder, "--json")

    code, out, err = run_open(*calibrate)

    assert (code, err) == (0, "")
    fit = json.loads(out)["calibration"]
    assert fit["error_after"] < fit["error_before"]

    def apply(score: float) -> float:
        logit = math.log(score / (1 - score))
        return 1 / (1 + math.exp(-(fit["scale"] * logit + fit["shift"])))

    after = score_yak(run_open, folder)
    assert sum(after.values()) == pytest.approx(len(shown), rel=0.1)
    expected = {name: pytest.approx(apply(score), abs=1e-4) for name, score in before.items()}
    assert after == expected
    predict = ("predict", folder / "images" / "0.png", "--label-set", "zoo", "--top-k", 3, "--json")
    labels = {label["label"]: label for label in json.loads(run_open(*predict)[1])["labels"]}
    assert labels["gnu"]["threshold"] == pytest.approx(apply(0.7), abs=1e-4)
    assert [labels[name]["calibrated"] for name in ("yak", "gnu", "cat")] == [True, True, False]
    # Again, with the scores of now: nothing to improve, so the set keeps what it has.
    assert json.loads(run_open(*calibrate)[1])["calibration"] is None
    assert score_yak(run_open, folder) == after


def test_calibrate_takes_a_wanted_precision_and_names_labels_that_miss_it(
    calibrate: Run, run_open: Run, folder: Path
) -> None:
    photos = make_photos(40)
    write_folder(folder, photos, "yak", shown=[])
    write_folder(folder, photos, "yak", shown=list(score_yak(run_open, folder))[:20])
    report = json.loads(calibrate("--precision-target", 0.8, "--json")[1])
    assert (list(report["thresholds"]), report["not_reached"]) == (["yak"], [])
    report = json.loads(calibrate("--precision-target", 0.99, "--json")[1])
    assert (report["thresholds"], report["not_reached"]) == ({}, ["yak"])
    assert "not reached" in calibrate("--precision-target", 0.99)[1]


def test_label_with_a_fit_keeps_its_scores_and_gets_a_threshold_on_them() -> None:
    learnt = make_learnt(random_label_set(0, ["fit", "text"]), "fit")
    assert learnt.learnt is not None
    ((_, taught),) = learnt.learnt.each
    fitted = replace(learnt.learnt, taught=({"fit": replace(taught, pair=(0.2, 1.0))},))
    pairs = np.array([[0.2, 1.0], [1.0, 0.0]])
    labels = replace(learnt, learnt=fitted, calibration=pairs, calibrated=np.ones(2, np.bool_))
    targets = (np.arange(60) % 3 == 0).astype(np.int64)
    scores = np.random.default_rng(0).random((60, 2)) * 0.2 + 0.3 * targets[:, np.newaxis]
    found, points = calibrating._fit(labels, labels.names, scores, np.stack([targets] * 2, 1), None)
    assert found is not None
    assert points["fit"] == find_thresholds(["fit"], scores[:, :1], targets[:, np.newaxis])["fit"]
    assert points["text"] != points["fit"]
    assert calibrating._move_thresholds(labels, found.shared).keys() == {"text"}
