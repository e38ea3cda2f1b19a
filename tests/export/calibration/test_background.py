from pathlib import Path

import numpy as np
import onnx
import pytest

from export.__main__ import main
from export.build import ExportRequest, build_bundle
from export.calibration import background
from export.calibration.background import add_background, read_background_photos
from export.graphs.graph import open_session
from export.sources.labelled_photos import PhotoReader
from service.bundle.card import BackgroundPhotos
from service.bundle.manifest import BACKGROUND_FILE, MANIFEST_FILE
from service.bundle.reader import load_bundle
from service.bundle.writer import BundleDraft
from service.labels.whitening import MIN_PHOTOS, fit_whitening, read_whitening
from tests.export.tiny_network import SPLITS
from tests.support.photos import make_photo
from tests.support.tiny_bundle import OPEN_HEAD, open_card, tiny_graphs, write_tiny_bundle

ABOUT = BackgroundPhotos(dataset="holiday", images=MIN_PHOTOS)
ANOTHER = "the background is another one"


def write_photos(folder: Path) -> Path:
    """Writes just enough photos, one of them in a subfolder."""
    (folder / "sub").mkdir(parents=True)
    for number in range(MIN_PHOTOS):
        path = folder / ("sub" if number == 0 else ".") / f"{number}.png"
        path.write_bytes(make_photo(number))
    return folder


@pytest.mark.parametrize("kind", ["ml_decoder", "clip", "siglip"])
def test_background_is_that_of_the_services_embeddings_in_fp32(tmp_path: Path, kind: str) -> None:
    head = OPEN_HEAD.model_copy(update={"kind": kind})
    card = open_card().model_copy(update={"open_head": head})
    draft = BundleDraft(card=card, graphs=tiny_graphs())
    chosen = read_background_photos(write_photos(tmp_path / "holiday"), PhotoReader(card.input))
    assert list(chosen.paths) != sorted(chosen.paths)  # the first are held out
    made = add_background(draft, chosen)
    assert made.card.background == ABOUT
    session = open_session(onnx.load_from_string(draft.graphs["encoder"]["fp32"]))
    (tokens,) = session.run(["tokens"], {"images": chosen.read()})
    vectors = tokens.mean(axis=1) if kind == "ml_decoder" else tokens[:, 0]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    measured, expected = read_whitening(made.background or b""), fit_whitening(vectors)
    np.testing.assert_allclose(measured.whiten(vectors), expected.whiten(vectors), atol=1e-2)


def test_bundle_gets_a_background_in_place_or_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, photos = write_tiny_bundle(tmp_path), write_photos(tmp_path / "holiday")
    before = {path.name: path.read_bytes() for path in bundle.path.iterdir()}

    def export(folder: Path) -> tuple[int, list[str]]:
        given = ["--bundle", bundle.path, "--out", bundle.path, "--background", folder]
        return main([str(argument) for argument in given]), capsys.readouterr().err.splitlines()

    assert export(photos)[0] == 0
    after = load_bundle(bundle.path)
    assert after.card.background == ABOUT
    files = {path.name: path.read_bytes() for path in after.path.iterdir()}
    assert files.items() - before.items() == {
        (name, files[name]) for name in (BACKGROUND_FILE, MANIFEST_FILE)
    }

    damaged = photos / "damaged.jpg"
    damaged.write_bytes(b"junk")
    for is_other in (True, False):  # one more path is another order: other photos are held out
        code, lines = export(photos)
        assert (code, lines[-1], ANOTHER in str(lines)) == (1, "1 photo was left out", is_other)
        assert lines[0].startswith(f"left out: photo {damaged} cannot be decoded: ")
    changed = load_bundle(bundle.path)
    assert changed.photo_fingerprint != after.photo_fingerprint

    (photos / "7.png").unlink()
    (tmp_path / "empty").mkdir()
    for folder, reason in (
        (photos, f"--background needs at least 200 usable photos; {photos} has 199"),
        (tmp_path / "empty", "no photo of empty can be used: there is none"),
        (tmp_path / "gone", "No such file or directory"),
    ):
        code, lines = export(folder)
        assert (code, reason in lines[-1]) == (2, True)
    assert load_bundle(bundle.path) == changed


def test_export_takes_its_own_photos_if_they_are_enough(
    checkpoint: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "MIN_PHOTOS", SPLITS["train"])
    card = build_bundle(ExportRequest(checkpoint, tmp_path / "tiny", photos=folder)).card
    assert card.background == BackgroundPhotos(dataset="colours/train", images=SPLITS["train"])
