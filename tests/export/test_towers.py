"""Bundles of CLIP and SigLIP: precisions, label sets, calibration on photos."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from export import ExportError, variants
from export.build import ExportRequest, build_bundle
from export.graphs import text
from export.graphs.text import build_text_graph
from export.int8 import search
from export.sources.open import OpenRequest
from models.checkpoints.clip import read_clip
from models.checkpoints.description import Hints
from service.bundle.reader import Bundle
from service.engine.engine import open_engine
from service.labels.encoders import open_text_encoder
from service.labels.files import read_bundle_sets
from service.labels.whitening import MIN_PHOTOS
from tests.export.tiny_network import run_torch
from tests.models.tiny_towers import KINDS, write_towers
from tests.support.photos import make_picture

NAMES = ["red", "green", "blue"]
SIDE, PATCHES = 23, 11  # of 2 pixels, which do not fill the photo
PIXELS = np.random.default_rng(0).integers(0, 256, (3, SIDE, SIDE, 3), np.uint8)


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / request.param
    return write_towers(folder, request.param, side=SIDE, patch=2)


@pytest.fixture(scope="module")
def bundle(model: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Small formats, calibrated on photos."""
    parent = tmp_path_factory.mktemp("bundles")
    (parent / "zoo.json").write_text(json.dumps({"name": "zoo", "labels": NAMES}))
    request = ExportRequest(
        model,
        parent / "tiny",
        precisions=frozenset({"fp16"}),
        hints=Hints(embedding_template="a photo of a {}."),
        compact_weights=True,
        opened=OpenRequest(label_set=(parent / "zoo.json",), open_photos=folder),
    )
    return build_bundle(request)


def embed(bundle: Bundle) -> np.ndarray:
    return open_text_encoder(bundle, threads=1).encode([f"a photo of a {name}." for name in NAMES])


def test_small_formats_are_close_to_fp32(model: Path, bundle: Bundle) -> None:
    assert bundle.precisions() == ("fp32", "fp16")
    assert set(bundle.manifest.graphs["text_encoder"]) == {"fp32"}
    network, encoder = read_clip(model)
    exact = encoder.embed([f"a photo of a {name}." for name in NAMES])
    embeddings = embed(bundle)
    assert np.abs(embeddings - exact.numpy()).max() < 2e-3
    expected = run_torch(network, PIXELS, exact)
    for precision in bundle.precisions():
        engine = open_engine(bundle, device="cpu", precision=precision)
        results = engine.run(PIXELS, [[embeddings]] * 3, embedded=range(3))
        scored = np.stack([logits for (logits,), *_ in results])
        again = engine.score(np.stack([result.embedding for result in results]), [embeddings])
        assert np.abs(np.stack([result.logits[0] for result in again]) - scored).max() < 0.01
        assert np.abs(scored - expected).max() < 0.02 * np.abs(expected).max()


def test_photos_calibrate_labels_and_label_sets_are_embedded(model: Path, bundle: Bundle) -> None:
    head = bundle.card.open_head
    # Random towers know no colours, so perhaps no calibration is better than none.
    assert (head.activation == "softmax") == (model.name == "clip" and head.calibration is None)
    (definition,) = read_bundle_sets(bundle)
    assert definition.names == tuple(NAMES)
    np.testing.assert_allclose(definition.embeddings, embed(bundle), atol=2e-3)


def test_maps_have_the_grid_of_patches_that_do_not_fill_the_photo(bundle: Bundle) -> None:
    maps = onnx.load_from_string(bundle.read_graph("open_head_maps", "fp32")).graph.output[0]
    assert [dim.dim_value for dim in maps.type.tensor_type.shape.dim[2:]] == [PATCHES, PATCHES]


def test_options_of_other_models_are_refused(model: Path, checkpoint: Path, tmp_path: Path) -> None:
    out, names = tmp_path / "tiny", tmp_path / "names.txt"
    zoo = OpenRequest(label_set=(names,))
    for request, error, reason in (
        (ExportRequest(model, out, label_names=names), ExportError, "--label-names"),
        (ExportRequest(model, out, precisions=frozenset({"int8"})), ExportError, "int8 needs ph"),
        (ExportRequest(checkpoint, out, opened=zoo), ExportError, "--label-set needs --open-head"),
    ):
        with pytest.raises(error, match=reason):
            build_bundle(request)


def test_photos_without_labels_give_the_ranges_of_int8_and_everyday_is_the_default_set(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "KEPT_FLOAT_STEPS", (0,))
    monkeypatch.setattr(variants, "MIN_AGREEMENT", -np.inf)
    few = tmp_path / "everyday.json"
    few.write_text(json.dumps({"name": "everyday", "labels": NAMES}))
    monkeypatch.setattr("export.sources.open.EVERYDAY", few)
    folder = tmp_path / "photos"
    folder.mkdir()
    for seed in range(MIN_PHOTOS):
        make_picture(seed, SIDE, SIDE).save(folder / f"{seed}.png")
    asked = {"precisions": frozenset({"int8"}), "background": folder}
    bundle = build_bundle(ExportRequest(model, tmp_path / "tiny", **asked))
    assert [item.name for item in read_bundle_sets(bundle)] == ["everyday"]
    assert bundle.default_precision("cpu") == "int8"
    assert set(bundle.manifest.graphs["open_head"]) == {"fp32"}
    engines = [open_engine(bundle, device="cpu", precision=name) for name in ("fp32", "int8")]
    results = [engine.run(PIXELS, [()] * 3, embedded=range(3)) for engine in engines]
    exact, int8 = (np.stack([item.embedding for item in batch]) for batch in results)
    cosines = (exact * int8).sum(axis=1)
    assert 0.9 < cosines.min() < cosines.max() < 0.999999


def test_text_encoder_beyond_the_limit_of_a_file_is_stored_in_16_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, encoder = read_clip(write_towers(tmp_path / "clip", "clip"))
    monkeypatch.setattr(text, "LARGEST", 0)
    weights = build_text_graph(encoder).graph.initializer
    assert onnx.TensorProto.FLOAT16 in {tensor.data_type for tensor in weights}
