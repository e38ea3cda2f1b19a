"""A device works and gives the CPU's results, or the start fails with the reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from service.bundle.card import RunPrecision
from service.bundle.reader import Bundle, load_bundle
from service.engine.devices import (
    check_device,
    choose_precision,
    has_openvino,
    multiplies_bf16,
    multiplies_int8,
)
from service.engine.engine import Engine, open_engine
from service.engine.heads import LABELS_PER_RUN
from service.errors import BundleError, StartError
from service.images.decode import PixelArray, decode_image
from service.settings import Settings
from tests.support.engines import (
    assert_gives_the_cpus_logits,
    needs_bf16,
    needs_int8,
    needs_openvino,
)
from tests.support.tiny_bundle import (
    blank_labels,
    random_images,
    tiny_card,
    tiny_graphs,
    write_tiny_bundle,
)

ROOT = Path(__file__).parents[3]
PHOTOS = sorted((ROOT / "docs" / "photos").glob("*.jpg"))

# Sums in another order move a float32 logit of the tiny bundle by less.
TOLERANCE = 1e-4

needs_plugin = pytest.mark.skipif(not has_openvino(), reason="the extra `openvino` is missing")


@pytest.fixture(scope="module")
def engine(open_bundle: Bundle) -> Engine:
    engine = open_engine(
        open_bundle, device="openvino", precision="fp32", max_batch_size=6, threads=2
    )
    engine.warm_up(blank_labels)
    return engine


@pytest.fixture(scope="module")
def photos() -> PixelArray:
    """The photos of the documents, decoded for the default bundle."""
    contract = load_bundle(Settings().bundle).card.input
    most = Settings().max_pixels
    return np.stack([decode_image(p.read_bytes(), contract, most).pixels for p in PHOTOS])


def run_default(device: str, precision: RunPrecision, photos: PixelArray) -> np.ndarray:
    """Returns the trained logits [B, N] of the default bundle."""
    bundle = load_bundle(Settings().bundle)
    engine = open_engine(bundle, device=device, precision=precision)  # type: ignore[arg-type]
    return np.stack([logits for (logits,), *_ in engine.run(photos, [[None]] * len(photos))])


def describe_processor(flags: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "cpuinfo"
    path.write_text(flags)
    monkeypatch.setattr("service.engine.devices._CPU_INFO", path)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("flags : fpu avx512f amx_bf16 amx_tile", True),
        ("flags : fpu avx512f avx512_bf16", True),
        ("flags : fpu avx512f avx512_vnni", False),
        ("", False),
    ],
)
def test_bfloat16_is_found_among_the_flags_of_the_processor(
    flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, expected: bool
) -> None:
    describe_processor(flags, tmp_path, monkeypatch)
    assert multiplies_bf16() is expected


@pytest.mark.parametrize(
    ("flags", "machine", "expected"),
    [
        ("flags : avx2 avx512f avx512_vnni", "x86_64", True),
        ("flags : avx2 avx_vnni", "AMD64", True),
        ("flags : avx2 avx512f avx512bw", "x86_64", False),
        ("", "x86_64", False),
        ("Features : asimd", "aarch64", True),
    ],
)
def test_exact_int8_is_found_among_the_flags_of_an_x86_processor(
    flags: str, machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, expected: bool
) -> None:
    describe_processor(flags, tmp_path, monkeypatch)
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert multiplies_int8() is expected


def test_precision_auto_is_fp32_instead_of_int8_without_vnni(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    card = tiny_card().model_copy(update={"default_precision": {"cpu": "int8"}})
    bundle = write_tiny_bundle(tmp_path, card)
    monkeypatch.setattr("service.engine.devices.multiplies_int8", lambda: False)
    caplog.set_level("INFO")

    assert choose_precision(bundle, "cpu", "auto") == "fp32"
    assert "precision auto: fp32 instead of int8" in caplog.text
    assert choose_precision(bundle, "cpu", "int8") == "int8"


def test_start_fails_with_int8_of_openvino_without_vnni(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.engine.devices.multiplies_int8", lambda: False)

    with pytest.raises(StartError, match="int8: openvino loses accuracy on this processor"):
        choose_precision(tiny_bundle, "openvino", "int8")


def test_default_bundle_gives_the_same_in_int8_with_and_without_vnni(
    photos: PixelArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for vnni in (multiplies_int8(), False):
        monkeypatch.setattr("service.engine.sessions.multiplies_int8", lambda vnni=vnni: vnni)
        found.append(run_default("cpu", "int8", photos))

    np.testing.assert_array_equal(*found)


@needs_openvino
def test_engine_reports_openvino(engine: Engine) -> None:
    assert (engine.device, engine.provider) == ("openvino", "OpenVINOExecutionProvider")
    assert (engine.precision, engine.max_batch_size, engine.workers) == ("fp32", 6, 2)


@needs_openvino
def test_openvino_gives_the_cpus_logits_for_any_mixture_of_heads(
    engine: Engine, open_bundle: Bundle
) -> None:
    num_queries = LABELS_PER_RUN + 9
    assert_gives_the_cpus_logits(engine, open_bundle, num_queries=num_queries, tolerance=TOLERANCE)


@needs_openvino
def test_openvino_gives_the_cpus_memory_of_explained_rows(mapped_bundle: Bundle) -> None:
    ours, cpu = (
        open_engine(mapped_bundle, device=device, precision="fp32", max_batch_size=4)
        for device in ("openvino", "cpu")
    )
    images = random_images(0, 3)

    found, expected = (each.run(images, [[None]] * 3, explained=[1]) for each in (ours, cpu))

    assert [len(each.memories) for each in found] == [0, 1, 0]
    np.testing.assert_allclose(
        found[1].memories[0], expected[1].memories[0], atol=TOLERANCE, rtol=0
    )


@needs_openvino
@pytest.mark.parametrize(
    ("precision", "tolerance"),
    [
        ("fp32", 1e-3),
        # Rounding to 8 bits differs now and then.
        pytest.param("int8", 0.15, marks=needs_int8),
        pytest.param("bf16", 0.25, marks=needs_bf16),
    ],
)
def test_openvino_gives_nearly_the_cpus_logits_of_the_default_bundle(
    photos: PixelArray, precision: RunPrecision, tolerance: float
) -> None:
    stored: RunPrecision = "fp32" if precision == "bf16" else precision

    found = run_default("openvino", precision, photos)
    expected = run_default("cpu", stored, photos)

    np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0)


@needs_openvino
@needs_bf16
def test_bf16_differs_from_fp32(photos: PixelArray) -> None:
    bf16, fp32 = (run_default("openvino", precision, photos) for precision in ("bf16", "fp32"))
    assert np.abs(bf16 - fp32).max() > 1e-3


@needs_openvino
@pytest.mark.parametrize(
    ("stored", "capable", "expected"),
    [("int8", True, "int8"), ("fp32", True, "bf16"), ("fp32", False, "fp32")],
)
def test_precision_auto_is_bf16_if_the_bundle_prefers_fp32_and_the_processor_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: str, expected: str, *, capable: bool
) -> None:
    bundle = write_tiny_bundle(tmp_path)
    card = bundle.card.model_copy(update={"default_precision": {"cpu": stored}})
    bundle = write_tiny_bundle(tmp_path, card)
    monkeypatch.setattr("service.engine.devices.multiplies_bf16", lambda: capable)
    monkeypatch.setattr("service.engine.devices.multiplies_int8", lambda: True)

    assert open_engine(bundle, device="openvino").precision == expected


def test_start_fails_with_bf16_on_another_device(tiny_bundle: Bundle) -> None:
    with pytest.raises(StartError, match="bf16: device cpu does not support it"):
        open_engine(tiny_bundle, device="cpu", precision="bf16")

    assert open_engine(tiny_bundle, device="cpu").precision == "fp32"


@needs_openvino
def test_start_fails_with_bf16_if_the_processor_has_none(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.engine.devices.multiplies_bf16", lambda: False)

    with pytest.raises(StartError, match="bf16: this processor"):
        open_engine(tiny_bundle, device="openvino", precision="bf16")

    assert open_engine(tiny_bundle, device="openvino").precision == "fp32"


def test_start_fails_if_the_extra_is_not_installed(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.engine.devices.has_openvino", lambda: False)

    with pytest.raises(StartError, match="extra `openvino` is not installed"):
        open_engine(tiny_bundle, device="openvino")

    assert open_engine(tiny_bundle, device="cpu").device == "cpu"


@needs_plugin
def test_every_start_fails_if_the_plugin_does_not_support_the_processor(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.engine.devices.ort.get_ep_devices", list)

    for _ in range(2):
        with pytest.raises(StartError, match="supports Intel processors only"):
            open_engine(tiny_bundle, device="openvino")

    assert open_engine(tiny_bundle, device="cpu").device == "cpu"


@needs_openvino
def test_openvino_refuses_a_damaged_graph_with_its_name(tmp_path: Path) -> None:
    graphs = {**tiny_graphs(), "encoder": {"fp32": b"junk" * 100}}

    with pytest.raises(BundleError, match="encoder is not a usable ONNX graph"):
        open_engine(write_tiny_bundle(tmp_path, graphs=graphs), device="openvino")


def test_missing_libraries_are_printed_to_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def preload() -> None:
        print("Failed to load libcublasLt.so")  # noqa: T201 - as ONNX Runtime does

    monkeypatch.setattr(ort, "preload_dlls", preload)
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CPUExecutionProvider"])

    with pytest.raises(StartError, match="built without CUDAExecutionProvider"):
        check_device("cuda")

    assert capsys.readouterr() == ("", "Failed to load libcublasLt.so\n")
