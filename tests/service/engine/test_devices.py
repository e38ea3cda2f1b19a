"""A device works and gives the CPU's results, or the start fails with the reason."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from service.bundle.card import Device, Precision, RunPrecision
from service.bundle.reader import Bundle, load_bundle
from service.engine import devices, sessions
from service.engine.devices import (
    check_device,
    choose_precision,
    has_openvino,
    multiplies_bf16,
    multiplies_int8,
    parse_cuda_options,
)
from service.engine.engine import open_engine
from service.engine.heads import TRAINED_HEAD
from service.errors import StartError
from service.images.decode import PixelArray, decode_image
from service.settings import Settings
from tests.support.engines import needs_bf16, needs_int8, needs_openvino
from tests.support.tiny_bundle import tiny_card, write_tiny_bundle

PHOTOS = sorted((Path(__file__).parents[3] / "docs" / "photos").glob("*.jpg"))

needs_plugin = pytest.mark.skipif(not has_openvino(), reason="the extra `openvino` is missing")


@pytest.fixture(scope="module")
def photos() -> PixelArray:
    """The photos of the documents, decoded for the default bundle."""
    contract = load_bundle(Settings().bundle).card.input
    most = Settings().max_pixels
    return np.stack([decode_image(p.read_bytes(), contract, most).pixels for p in PHOTOS])


def run_default(device: Device, precision: RunPrecision, photos: PixelArray) -> np.ndarray:
    """Returns the trained logits [B, N] of the default bundle."""
    engine = open_engine(load_bundle(Settings().bundle), device=device, precision=precision)
    return np.stack(
        [logits for (logits,), *_ in engine.run(photos, [[TRAINED_HEAD]] * len(photos))]
    )


def set_processor(monkeypatch: pytest.MonkeyPatch, *, int8: bool = True, bf16: bool = True) -> None:
    monkeypatch.setattr(devices, "multiplies_int8", lambda: int8)
    monkeypatch.setattr(devices, "multiplies_bf16", lambda: bf16)


def write_preferring(folder: Path, precision: Precision) -> Bundle:
    """Writes a bundle whose default on the CPU is a precision."""
    update = {"default_precision": {"cpu": precision}}
    return write_tiny_bundle(folder, tiny_card().model_copy(update=update))


@pytest.mark.parametrize(
    ("flags", "machine", "expected"),
    [
        ("flags : fpu avx512f avx512_vnni amx_bf16 amx_tile", "x86_64", (True, True)),
        ("flags : fpu avx_vnni avx512_bf16", "AMD64", (True, True)),
        ("flags : fpu avx2 avx512f avx512bw", "x86_64", (False, False)),
        ("", "x86_64", (False, False)),
        ("Features : asimd", "aarch64", (True, False)),
    ],
)
def test_abilities_are_found_among_the_flags_of_the_processor(
    flags: str,
    machine: str,
    expected: tuple[bool, bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "cpuinfo").write_text(flags)
    monkeypatch.setattr(devices, "_CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert (multiplies_int8(), multiplies_bf16()) == expected


@pytest.mark.parametrize(
    ("device", "stored", "lacking", "expected"),
    [
        ("cpu", "int8", "bf16", "int8"),
        ("cpu", "int8", "int8", "fp32"),
        ("cuda", "int8", "int8", "fp32"),  # the choice is the CPU's
        ("openvino", "int8", "", "int8"),
        ("openvino", "fp32", "", "bf16"),
        ("openvino", "fp32", "bf16", "fp32"),
    ],
)
def test_precision_auto_is_the_bundles_choice_unless_the_processor_has_a_better_one(
    tmp_path: Path, device: Device, stored: Precision, lacking: str, expected: RunPrecision
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        set_processor(patch, int8=lacking != "int8", bf16=lacking != "bf16")
        assert choose_precision(write_preferring(tmp_path, stored), device, "auto") == expected


def test_precision_auto_logs_why_it_is_not_int8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    set_processor(monkeypatch, int8=False)
    caplog.set_level("INFO")
    bundle = write_preferring(tmp_path, "int8")
    assert choose_precision(bundle, "cpu", "int8") == "int8"
    assert not caplog.text
    choose_precision(bundle, "cpu", "auto")
    assert "precision auto: fp32 instead of int8" in caplog.text


@pytest.mark.parametrize(
    ("device", "asked", "reason"),
    [
        ("cpu", "fp16", "fp16: the bundle has fp32, int8"),
        ("cpu", "bf16", "bf16: device cpu does not support it"),
        ("openvino", "bf16", "bf16: this processor"),
        ("openvino", "int8", "int8: openvino loses accuracy on this processor"),
    ],
)
def test_start_fails_with_a_precision_that_does_not_work(
    tiny_bundle: Bundle,
    monkeypatch: pytest.MonkeyPatch,
    device: Device,
    asked: RunPrecision,
    reason: str,
) -> None:
    set_processor(monkeypatch, int8=False, bf16=False)
    with pytest.raises(StartError, match=reason):
        choose_precision(tiny_bundle, device, asked)


def test_default_bundle_gives_the_same_in_int8_with_and_without_vnni(
    photos: PixelArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = []
    for vnni in (multiplies_int8(), False):
        monkeypatch.setattr(sessions, "multiplies_int8", lambda vnni=vnni: vnni)
        logits.append(run_default("cpu", "int8", photos))

    np.testing.assert_array_equal(*logits)


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
    logits, expected = (
        run_default("openvino", precision, photos),
        run_default("cpu", stored, photos),
    )
    np.testing.assert_allclose(logits, expected, atol=tolerance, rtol=0)
    if precision == "bf16":
        assert np.abs(logits - expected).max() > 1e-3, "it is fp32"


def test_start_fails_if_the_extra_is_not_installed(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "has_openvino", lambda: False)

    with pytest.raises(StartError, match="extra `openvino` is not installed"):
        open_engine(tiny_bundle, device="openvino")

    assert open_engine(tiny_bundle, device="cpu").device == "cpu"


@needs_plugin
def test_every_start_fails_if_the_plugin_does_not_support_the_processor(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ort, "get_ep_devices", list)
    for _ in range(2):
        with pytest.raises(StartError, match="supports Intel processors only"):
            open_engine(tiny_bundle, device="openvino")


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


def test_cuda_options_are_read() -> None:
    assert parse_cuda_options(None, "cpu") == {}
    text = " a = b=c,prefer_nhwc=1,fuse_conv_bias=true,enable_cuda_graph=0,device_id=0"
    options = {"a": "b=c", "prefer_nhwc": "1", "fuse_conv_bias": "true"}
    options |= {"enable_cuda_graph": "0", "device_id": "0"}
    assert parse_cuda_options(text, "tensorrt") == options


@pytest.mark.parametrize(
    ("text", "device", "said"),
    [
        ("prefer_nhwc", "cuda", "'prefer_nhwc' must be NAME=VALUE, each name once"),
        ("a=1,a=2", "cuda", "'a=2' must be NAME=VALUE, each name once"),
        ("a=1", "cpu", "device cpu has none: set device cuda, or unset them"),
        ("device_id=1", "cuda", "device_id must be 0; it is 1: set CUDA_VISIBLE_DEVICES instead"),
        ("enable_cuda_graph=1", "cuda", "enable_cuda_graph is not supported, .*: unset it"),
        ("fuse_conv_bias=1", "cuda", "fuse_conv_bias gives wrong .*: set prefer_nhwc=1 too, .*"),
        ("prefer_nhwc=false,fuse_conv_bias=true", "cuda", "fuse_conv_bias gives wrong .*"),
    ],
)
def test_cuda_options_that_cannot_work_stop_the_start(text: str, device: Device, said: str) -> None:
    with pytest.raises(StartError, match=f"^cuda_options: {said}$"):
        parse_cuda_options(text, device)
