"""Calibrating a finished bundle."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from export import ExportError
from export.__main__ import main
from export.accuracy import check_blank
from export.calibration.bundle import RecalibrationRequest, recalibrate_bundle
from export.calibration.heads import CalibrationOptions
from models.data.records import DataError
from service.bundle.card import BackgroundPhotos
from service.bundle.reader import Bundle, load_bundle
from service.bundle.writer import write_bundle
from service.engine.heads import Embeddings, LogitsArray
from service.images.decode import PixelArray
from service.labels.encoders import open_text_encoder
from service.labels.files import read_bundle_sets
from service.labels.label_set import make_trained_set
from service.pipeline.scoring import compute_scores
from tests.export.tiny_network import write_folder
from tests.project.test_imports import TORCH
from tests.support.tiny_bundle import SIDE, TINY_LABELS, open_draft, run_bundle, write_tiny_bundle

TRAINED = tuple(label.name for label in TINY_LABELS)
UNSEEN = ("chair", "lamp", "table")
EVERYDAY = b'{"name": "everyday", "labels": ["chair", "cat", {"name": "lamp", "threshold": 0.7}]}'


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Both heads and a set with a trained name and a threshold, without calibration."""
    draft = replace(open_draft(), label_sets={"everyday.json": EVERYDAY}, background=b"kept")
    return write_bundle(tmp_path_factory.mktemp("raw") / draft.card.name, draft)


def make_pictures(count: int = 120) -> PixelArray:
    """Returns noise around colours, so that logits differ."""
    stream = np.random.default_rng(3)
    colours, noise = stream.integers(0, 256, (count, 1, 1, 3)), (count, SIDE, SIDE, 3)
    return (colours + stream.integers(-60, 60, noise)).clip(0, 255).astype(np.uint8)


PICTURES = make_pictures()


def write_photos(folder: Path, names: tuple[str, ...], logits: LogitsArray, split: str) -> Path:
    """Writes the pictures; a label is shown with a chance of sigmoid(logit / 2 - 1)."""
    (folder / "images").mkdir(parents=True)
    stream = np.random.default_rng(5)
    targets = stream.random(logits.shape) < 1 / (1 + np.exp(-(logits / 2 - 1)))
    images = {}
    for number, (pixels, row) in enumerate(zip(PICTURES, targets, strict=True)):
        Image.fromarray(pixels).save(folder / "images" / f"{number}.png")
        labels = [name for name, shown in zip(names, row, strict=True) if shown]
        images[f"{number}.png"] = {"split": split, "labels": labels}
    index = {"name": folder.name, "label_names": names, "images": images}
    (folder / "labels.json").write_text(json.dumps(index))
    return folder


@pytest.fixture(scope="module")
def photos(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    logits = run_bundle(bundle, PICTURES)
    return write_photos(tmp_path_factory.mktemp("p") / "made", TRAINED, logits, "val")


@pytest.fixture(scope="module")
def open_photos(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    logits = run_bundle(bundle, PICTURES, embed(bundle, UNSEEN))
    return write_photos(tmp_path_factory.mktemp("o") / "other", UNSEEN, logits, "train")


def embed(bundle: Bundle, names: tuple[str, ...]) -> Embeddings:
    return open_text_encoder(bundle, threads=1).encode([f"a {name}" for name in names])


@pytest.fixture(scope="module")
def request_all(bundle: Bundle, photos: Path, open_photos: Path) -> RecalibrationRequest:
    return RecalibrationRequest(bundle.path, Path(), photos, open_photos, "train")


def put_in(request: RecalibrationRequest, folder: Path) -> RecalibrationRequest:
    return replace(request, out=folder / request.bundle.name)


@pytest.fixture(scope="module")
def calibrated(
    request_all: RecalibrationRequest, tmp_path_factory: pytest.TempPathFactory
) -> Bundle:
    return recalibrate_bundle(put_in(request_all, tmp_path_factory.mktemp("new")), set())


def test_command_calibrates_without_torch(
    bundle: Bundle, calibrated: Bundle, photos: Path, open_photos: Path, tmp_path: Path
) -> None:
    for folder in (photos, open_photos):  # together enough for a background
        shutil.copytree(folder / "images", tmp_path / "seen" / folder.name)
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({TORCH})); "
        "from service.cli.__main__ import main; main()"
    )
    given = {"bundle": bundle.path, "out": tmp_path / bundle.path.name, "open-split": "train"}
    given |= {"photos": photos, "open-photos": open_photos, "background": tmp_path / "seen"}
    flags = [f"--{name}={value}" for name, value in given.items()]
    command = [sys.executable, "-c", script, "export", *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = load_bundle(tmp_path / bundle.path.name)
    assert written.card.background == BackgroundPhotos(dataset="seen", images=2 * len(PICTURES))
    assert written.labels == calibrated.labels
    assert written.card.open_head == calibrated.card.open_head


def test_calibrated_bundle_has_the_same_graphs_and_version(
    bundle: Bundle, calibrated: Bundle
) -> None:
    assert calibrated.manifest.graphs == bundle.manifest.graphs
    for variants in bundle.manifest.graphs.values():
        for file in variants.values():
            assert (calibrated.path / file).read_bytes() == (bundle.path / file).read_bytes()
    assert calibrated.card.version == bundle.card.version
    assert calibrated.read_tokenizer() == bundle.read_tokenizer()
    assert calibrated.read_background() == b"kept"


def test_heads_get_calibrations_measured_on_the_photos(calibrated: Bundle) -> None:
    head = calibrated.card.trained_head
    for calibration, dataset, labels in (
        (head.calibration, "made/val", 5),
        (calibrated.card.open_head.calibration, "other/train", 3),
    ):
        assert calibration.scale < 1
        assert (calibration.dataset, calibration.images) == (dataset, len(PICTURES))
        assert calibration.labels == labels
        assert calibration.error_after < calibration.error_before
    assert calibrated.card.open_head.threshold == 0.5
    assert calibrated.card.open_head.by_purpose["recall"].recall >= 0.75
    assert head.by_purpose["precise"].precision >= 0.9
    words = {tuple(label.by_purpose) for label in calibrated.labels}
    assert words == {("balanced", "recall"), ("balanced", "recall", "precise")}


def test_labels_keep_their_descriptions_and_get_thresholds_on_calibrated_scores(
    calibrated: Bundle,
) -> None:
    assert [label.description for label in calibrated.labels] == [
        label.description for label in TINY_LABELS
    ]
    labels = make_trained_set(calibrated.labels, calibrated.card.trained_head)
    scores = compute_scores(run_bundle(calibrated, PICTURES), "sigmoid", labels.calibration)
    for column, label in zip(scores.T, calibrated.labels, strict=True):
        assert column.min() <= label.threshold <= column.max()


def test_thresholds_of_ready_sets_follow_the_new_scores(bundle: Bundle, calibrated: Bundle) -> None:
    (before,), (after,) = read_bundle_sets(bundle), read_bundle_sets(calibrated)
    assert after.names == before.names
    chair, cat, lamp = after.thresholds
    assert chair is None  # never had one
    assert cat is not None  # a trained label, measured
    # Given by hand: the same photos reach it as before.
    pair = calibrated.card.open_head.calibration
    assert lamp == pytest.approx(1 / (1 + np.exp(-(pair.scale * np.log(0.7 / 0.3) + pair.shift))))
    np.testing.assert_allclose(after.embeddings, embed(bundle, before.names), atol=1e-2)


def test_bundle_is_calibrated_in_place_and_raw_again(
    request_all: RecalibrationRequest, tmp_path: Path
) -> None:
    first = recalibrate_bundle(put_in(request_all, tmp_path), set())
    again = replace(request_all, bundle=first.path, out=first.path, model_version="2")
    second = recalibrate_bundle(again, set())
    assert second.card == first.card.model_copy(update={"version": "2"})
    assert second.labels == first.labels
    assert second.read_label_sets() == first.read_label_sets()
    raw = recalibrate_bundle(replace(again, options=CalibrationOptions(raw_scores=True)), set())
    trained, opened = raw.card.trained_head, raw.card.open_head
    assert trained.calibration is opened.calibration is opened.trained_names is None
    assert opened.threshold != 0.5
    assert all(label.calibration is None for label in raw.labels)
    (everyday,) = read_bundle_sets(raw)
    assert everyday.thresholds[2] == pytest.approx(0.7)


def test_open_head_is_left_alone_without_photos_for_it(
    calibrated: Bundle, request_all: RecalibrationRequest, tmp_path: Path
) -> None:
    request = replace(request_all, bundle=calibrated.path, open_photos=None)
    written = recalibrate_bundle(put_in(request, tmp_path), set())
    assert written.card.open_head.calibration == calibrated.card.open_head.calibration
    with pytest.raises(ExportError, match="--raw-scores needs --open-photos"):
        recalibrate_bundle(
            replace(put_in(request, tmp_path), options=CalibrationOptions(raw_scores=True)), set()
        )


def test_labels_that_are_found_on_blank_photos_are_named(
    calibrated: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "export")
    greys = (*range(0, 256, 32), 255)
    blank = np.stack([np.full((SIDE, SIDE, 3), grey, np.uint8) for grey in greys])
    head = calibrated.card.trained_head
    for threshold in (0.0, 0.5, 1.0):
        labels = tuple(
            label.model_copy(update={"threshold": threshold}) for label in calibrated.labels
        )
        served = make_trained_set(labels, head)
        scores = compute_scores(run_bundle(calibrated, blank), "sigmoid", served.calibration)
        names = [TRAINED[i] for i in (scores >= served.thresholds).any(axis=0).nonzero()[0]]
        check_blank(replace(calibrated, labels=labels))
        line = f"trained: labels found on blank photos: {len(names)} ({', '.join(names) or 'none'})"
        assert line in caplog.text
        caplog.clear()


def test_photos_that_do_not_fit_are_refused(
    bundle: Bundle, request_all: RecalibrationRequest, tmp_path: Path
) -> None:
    small = write_tiny_bundle(tmp_path / "small")
    renamed = replace(request_all, bundle=small.path, out=tmp_path / "other-name")
    with pytest.raises(ExportError, match=f"{small.card.name} has no text encoder for"):
        recalibrate_bundle(renamed, set())
    other = replace(request_all, photos=write_folder(tmp_path / "colours"))
    with pytest.raises(DataError, match="do not have the same labels"):
        recalibrate_bundle(put_in(other, tmp_path), set())
    with pytest.raises(ExportError, match="version"):
        recalibrate_bundle(put_in(replace(request_all, model_version="a b"), tmp_path), set())
    assert not (tmp_path / bundle.path.name).exists()


def test_command_calibrates_a_bundle_and_names_labels_of_blank_photos(
    bundle: Bundle,
    open_photos: Path,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / bundle.path.name
    given = ["--bundle", str(bundle.path), "--photos", str(photos), "--out", str(out)]
    given += ["--open-photos", str(open_photos), "--open-split", "train"]
    assert main([*given, "--precision-target", "0.7", "--model-version", "1.1.0"]) == 0
    err = capsys.readouterr().err
    assert "precision 0.7: " in err
    assert "trained: labels found on blank photos: " in err
    assert "everyday: labels found on blank photos: " in err
    assert err.splitlines()[-1] == f"wrote {out}"
    written = load_bundle(out)
    assert written.card.version == "1.1.0"
    for label in written.labels:
        assert label.precision is None or label.precision >= 0.7
