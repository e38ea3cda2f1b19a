from pathlib import Path

import numpy as np
import onnx
import pytest

from export import variants
from export.build import ExportRequest, build_bundle
from export.calibration.heads import CalibrationOptions
from export.graphs.graph import PIXELS_TO_LOGITS, Graphs
from export.int8.search import Int8Graphs
from export.sources.labelled_photos import PhotoReader, read_splits
from models.checkpoints.description import CheckpointError, Hints
from models.network import Network
from service.bundle.card import Precision
from service.bundle.reader import Bundle, load_bundle
from service.calibration import fit_calibration
from service.engine.engine import open_engine
from service.engine.heads import TRAINED_HEAD, LogitsArray
from service.errors import BundleError
from service.images.decode import PixelArray
from tests.export.tiny_network import CONTRACT, LABELS, assert_close, run_torch


@pytest.fixture(scope="module")
def bundle(checkpoint: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Every variant of the tiny network, measured on coloured pictures."""
    request = ExportRequest(
        checkpoint,
        tmp_path_factory.mktemp("bundles") / "colours-v1",
        photos=folder,
        precisions=frozenset({"fp16", "int8"}),
        model_version="7",
        license="CC0-1.0",
    )
    return build_bundle(request)


def run_trained(bundle: Bundle, pixels: PixelArray, precision: Precision = "fp32") -> LogitsArray:
    """Returns the logits [B, N] of the trained labels."""
    engine = open_engine(bundle, device="cpu", precision=precision)
    return np.stack(
        [logits for (logits,), *_ in engine.run(pixels, [[TRAINED_HEAD]] * len(pixels))]
    )


def test_service_computes_what_torch_does_on_the_same_pixels(
    bundle: Bundle, network: Network, folder: Path
) -> None:
    pixels = read_splits(folder, LABELS, PhotoReader(CONTRACT)).test.sample(3).read()
    assert_close(run_trained(bundle, pixels), run_torch(network, pixels))


def test_variants_run_in_the_service_and_tell_viewers_name_version_input_and_labels(
    bundle: Bundle,
) -> None:
    assert bundle.precisions() == ("fp32", "fp16", "int8")
    for precision in bundle.precisions():
        logits = run_trained(bundle, np.zeros((2, 32, 48, 3), np.uint8), precision)
        assert logits.shape == (2, len(LABELS))
        model = onnx.load_from_string(bundle.read_graph("trained_head", precision))
        assert {entry.key: entry.value for entry in model.metadata_props} == {
            "name": "colours-v1",
            "version": "7",
            "input": "uint8 RGB [B, 32, 48, 3], squashed, bilinear to 48 x 32, "
            "mean 0.5 0.4 0.3, std 0.2 0.25 0.3",
            "labels": '["blue", "green", "red"]',
        }


def test_card_has_the_provenance_and_the_accuracy_of_every_variant(bundle: Bundle) -> None:
    card = bundle.card
    assert (card.name, card.version, card.license) == ("colours-v1", "7", "CC0-1.0")
    assert card.provenance.backbone == "test_efficientnet"
    assert card.provenance.training_data == "coloured noise"
    assert {"torch", "onnxruntime"} <= card.provenance.tools.keys()
    assert card.trained_head.kind == "ml_decoder"
    assert tuple(m.precision for m in card.metrics) == bundle.precisions()
    assert {(m.name, m.dataset, m.images) for m in card.metrics} == {("mAP", "colours/test", 24)}
    assert all(0 <= m.value <= 100 for m in card.metrics)


def test_thresholds_and_calibration_are_those_of_validation(bundle: Bundle, folder: Path) -> None:
    val = read_splits(folder, LABELS, PhotoReader(CONTRACT)).val
    assert [label.name for label in bundle.labels] == list(LABELS)
    assert [label.positives for label in bundle.labels] == val.targets.sum(axis=0).tolist()
    assert all(label.threshold is not None for label in bundle.labels)
    served = run_trained(bundle, val.read(), bundle.default_precision("cpu"))
    fit, calibration = fit_calibration(served, val.targets), bundle.card.trained_head.calibration
    assert (calibration.scale, calibration.shift) == pytest.approx(
        (fit.shared.scale, fit.shared.shift), abs=1e-3
    )
    assert (calibration.dataset, calibration.images) == ("colours/val", len(val.paths))


def test_int8_is_not_the_cpus_default_when_it_does_not_agree_with_fp32(
    checkpoint: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_int8(graphs: Graphs, *_: object) -> Int8Graphs:
        return Int8Graphs({name: graphs[name] for name in PIXELS_TO_LOGITS}, (), agreement=19.9)

    monkeypatch.setattr(variants, "find_int8", find_int8)
    raw = CalibrationOptions(raw_scores=True)
    precisions: frozenset[Precision] = frozenset({"int8"})
    made = build_bundle(
        ExportRequest(checkpoint, tmp_path / "tiny", folder, precisions, options=raw)
    )
    assert made.default_precision("cpu") == "fp32"
    assert made.card.trained_head.calibration is None


def test_padded_photos_have_int8_thresholds_and_a_line_on_their_preparation(
    checkpoint: Path,
    network: Network,
    folder: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hints = Hints(pad="white", interpolation="bicubic")
    caplog.set_level("INFO", logger="export")
    made = build_bundle(
        ExportRequest(checkpoint, tmp_path / "tiny", folder, frozenset({"int8"}), hints)
    )
    assert (
        "photos: padded to a white square, bicubic to 48 x 32, mean 0.5 0.4 0.3, std 0.2 0.25 0.3, "
        "channels RGB"
    ) in caplog.messages
    contract = load_bundle(made.path).card.input
    assert (contract.resize_mode, contract.pad_color) == ("pad", (255, 255, 255))
    assert all(label.threshold is not None for label in made.labels)
    pixels = read_splits(folder, LABELS, PhotoReader(contract)).test.read()
    assert pixels[:, 0].min() == 255  # the padding above photos of 56 x 40 pixels
    exact, coarse = (run_trained(made, pixels, precision) for precision in ("fp32", "int8"))
    assert_close(exact, run_torch(network, pixels))
    assert_close(coarse, exact, tolerance=0.03)


def test_build_refuses_a_folder_that_is_no_bundle_before_any_work(tmp_path: Path) -> None:
    out = tmp_path / "tiny"
    out.mkdir()
    (out / "model.safetensors").write_text("kept")
    # The checkpoint is not even looked for.
    with pytest.raises(BundleError, match="exists and is not a bundle"):
        build_bundle(ExportRequest(tmp_path / "gone", out))
    assert (out / "model.safetensors").read_text() == "kept"
    (out / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no checkpoint file"):
        build_bundle(ExportRequest(tmp_path / "gone", out))
