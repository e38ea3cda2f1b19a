from pathlib import Path

import numpy as np
import onnx
import pytest

from export.__main__ import main
from export.calibration import background
from export.calibration.background import (
    add_background,
    find_background_photos,
    read_background_photos,
)
from export.graphs.graph import open_session
from export.sources.open import OpenSource
from export.sources.photos import PhotoReader, read_splits
from service.bundle.card import BackgroundPhotos
from service.bundle.manifest import BACKGROUND_FILE, MANIFEST_FILE
from service.bundle.reader import Bundle, load_bundle
from service.bundle.writer import BundleDraft
from service.labels.background import MIN_PHOTOS, fit_background, read_background
from tests.export.tiny_network import CONTRACT, LABELS, SPLITS
from tests.support.photos import make_photo
from tests.support.tiny_bundle import OPEN_HEAD, WIDTH, open_card, tiny_graphs, write_tiny_bundle

ANOTHER = "the background is another one"
CHANGED = {BACKGROUND_FILE, MANIFEST_FILE}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Just enough photos, one of them in a subfolder."""
    return write_photos(tmp_path_factory.mktemp("photos") / "holiday", seed=1)


def write_photos(folder: Path, seed: int) -> Path:
    (folder / "sub").mkdir(parents=True)
    for number in range(MIN_PHOTOS):
        path = folder / ("sub" if number == 0 else ".") / f"{number}.png"
        path.write_bytes(make_photo(seed + number))
    return folder


def export(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


@pytest.mark.parametrize("kind", ["ml_decoder", "clip", "siglip"])
def test_background_is_that_of_the_services_embeddings_in_fp32(photos: Path, kind: str) -> None:
    head = OPEN_HEAD.model_copy(update={"kind": kind})
    card = open_card().model_copy(update={"open_head": head})
    draft = BundleDraft(card=card, graphs=tiny_graphs())
    chosen = read_background_photos(photos, PhotoReader(card.input))
    assert len(set(chosen.paths)) == MIN_PHOTOS
    assert list(chosen.paths) != sorted(chosen.paths)  # the first are held out
    made = add_background(draft, chosen)
    assert made.card.background == BackgroundPhotos(dataset="holiday", images=MIN_PHOTOS)
    assert made.background is not None

    session = open_session(onnx.load_from_string(draft.graphs["encoder"]["fp32"]))
    (tokens,) = session.run(["tokens"], {"images": chosen.read()})
    vectors = tokens.mean(axis=1) if kind == "ml_decoder" else tokens[:, 0]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found, expected = read_background(made.background), fit_background(vectors)
    assert found.width == WIDTH
    np.testing.assert_allclose(found.whiten(vectors), expected.whiten(vectors), atol=1e-2)


def test_bundle_gets_a_background_in_place_and_keeps_all_other_files(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = write_tiny_bundle(tmp_path)
    files = {path.name: path.read_bytes() for path in before.path.iterdir()}
    arguments = ("--bundle", before.path, "--out", before.path, "--background")
    assert export(*arguments, photos) == 0
    after = load_bundle(before.path)
    assert after.card.background == BackgroundPhotos(dataset="holiday", images=MIN_PHOTOS)
    assert after.encoder_fingerprint != before.encoder_fingerprint
    found = {path.name: path.read_bytes() for path in after.path.iterdir()}
    assert {name for name in found if found[name] != files.get(name)} == CHANGED
    assert found.keys() == {*files, BACKGROUND_FILE}

    assert export(*arguments, photos) == 0
    assert load_bundle(before.path) == after
    assert ANOTHER not in capsys.readouterr().err
    assert export(*arguments, write_photos(tmp_path / "other", seed=2)) == 0
    assert ANOTHER in capsys.readouterr().err
    assert load_bundle(before.path).encoder_fingerprint != after.encoder_fingerprint


def test_unusable_photos_are_named_and_fewer_than_needed_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = write_photos(tmp_path / "holiday", seed=1)
    bundle = write_tiny_bundle(tmp_path)
    arguments = ("--bundle", bundle.path, "--out", tmp_path / "new", "--background")
    (photos / "notes.txt").write_text("no photo")
    (photos / "more.jpg").write_bytes(b"junk")
    assert export(*arguments, photos) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(f"left out: photo {photos / 'more.jpg'} cannot be decoded: ")
    assert lines[-1] == "1 photo was left out"
    assert load_bundle(tmp_path / "new").card.background is not None

    (photos / "7.png").unlink()
    (tmp_path / "empty").mkdir()
    for folder, reason in (
        (photos, f"--background needs at least 200 usable photos; {photos} has 199"),
        (tmp_path / "empty", "no photo of empty can be used: there is none"),
        (tmp_path / "gone", "No such file or directory"),
    ):
        assert export(*arguments, folder) == 2
        assert reason in capsys.readouterr().err.splitlines()[-1]


def test_background_survives_calibration_and_models_without_photos_have_none(
    checkpoint: Path, plain_bundle: Bundle, folder: Path, photos: Path, tmp_path: Path
) -> None:
    assert plain_bundle.card.background is plain_bundle.read_background() is None
    out = tmp_path / "tiny"
    new = ("--checkpoint", checkpoint, "--precision", "fp32", "--out", out)
    assert export(*new, "--background", photos) == 0
    bundle = load_bundle(out)
    content = bundle.read_background()
    assert content is not None
    assert read_background(content).width == 256
    assert export("--bundle", out, "--out", out, "--photos", folder) == 0
    assert load_bundle(out).read_background() == content
    assert load_bundle(out).card.background == bundle.card.background


def test_export_takes_its_own_photos_if_they_are_enough(
    folder: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "export")
    reader = PhotoReader(CONTRACT)
    splits = read_splits(folder, LABELS, reader)
    assert find_background_photos(None, splits, None, reader) is None
    assert f"needs a background of {MIN_PHOTOS} photos; there are {SPLITS['train']}" in caplog.text
    assert find_background_photos(None, None, None, reader) is None
    monkeypatch.setattr(background, "MIN_PHOTOS", SPLITS["train"])
    opened = OpenSource(None, None, (), unseen=splits.val)  # type: ignore[arg-type]
    for own, dataset in ((splits, "colours/train"), (None, "colours/val")):
        for given, expected in ((None, dataset), (photos, "holiday")):
            found = find_background_photos(given, own, opened, reader)
            assert found is not None
            assert found.dataset == expected
