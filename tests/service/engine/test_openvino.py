"""OpenVINO's kernels give what ONNX Runtime's own give, or the start says why they cannot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from service.bundle.card import RunPrecision
from service.bundle.reader import Bundle, load_bundle
from service.engine.engine import Engine, open_engine
from service.engine.lanes import LABELS_PER_RUN
from service.engine.openvino import is_installed, multiplies_bf16
from service.errors import BundleError, StartError
from service.images.decode import PixelArray, decode_image
from service.settings import Settings
from tests.support.engines import assert_gives_the_cpus_logits, needs_bf16, needs_openvino
from tests.support.tiny_bundle import QUERY_WIDTH, random_images, tiny_graphs, write_tiny_bundle

ROOT = Path(__file__).parents[3]
PHOTOS = sorted((ROOT / "docs" / "photos").glob("*.jpg"))

# Sums in another order move a float32 logit of the tiny bundle by less.
TOLERANCE = 1e-4

needs_plugin = pytest.mark.skipif(not is_installed(), reason="the extra `openvino` is not here")


@pytest.fixture(scope="module")
def engine(open_bundle: Bundle) -> Engine:
    engine = open_engine(
        open_bundle, device="openvino", precision="fp32", max_batch_size=6, threads=2
    )
    engine.warm_up(QUERY_WIDTH)
    return engine


@pytest.fixture(scope="module")
def photos() -> PixelArray:
    """The photos of the documents, as the default bundle wants them."""
    contract = load_bundle(Settings().bundle).card.input
    most = Settings().max_pixels
    return np.stack([decode_image(p.read_bytes(), contract, most).pixels for p in PHOTOS])


def run_default(device: str, precision: RunPrecision, photos: PixelArray) -> np.ndarray:
    """Returns the trained logits [B, N] of the default bundle."""
    bundle = load_bundle(Settings().bundle)
    engine = open_engine(bundle, device=device, precision=precision)  # type: ignore[arg-type]
    return np.stack([logits for (logits,), _ in engine.run(photos, [[None]] * len(photos))])


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("flags : fpu avx512f amx_bf16 amx_tile", True),
        ("flags : fpu avx512f avx512_bf16", True),
        ("flags : fpu avx512f avx512_vnni", False),
        ("", False),
    ],
)
def test_processor_tells_whether_it_multiplies_bfloat16(flags: str, *, expected: bool) -> None:
    assert multiplies_bf16(flags) is expected


@needs_openvino
def test_engine_tells_that_openvino_runs(engine: Engine) -> None:
    assert (engine.device, engine.provider) == ("openvino", "OpenVINOExecutionProvider")
    assert (engine.precision, engine.max_batch_size, engine.workers) == ("fp32", 6, 2)


@needs_openvino
def test_logits_equal_the_cpus_in_any_mixture_of_heads(engine: Engine, open_bundle: Bundle) -> None:
    num_queries = LABELS_PER_RUN + 9
    assert_gives_the_cpus_logits(engine, open_bundle, num_queries=num_queries, tolerance=TOLERANCE)


@needs_openvino
def test_explained_rows_bring_the_cpus_memory(mapped_bundle: Bundle) -> None:
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
        # What is rounded to eight bits falls to the other side now and then.
        ("int8", 0.15),
        pytest.param("bf16", 0.25, marks=needs_bf16),
    ],
)
def test_default_bundle_gives_nearly_the_cpus_logits(
    photos: PixelArray, precision: RunPrecision, tolerance: float
) -> None:
    stored: RunPrecision = "fp32" if precision == "bf16" else precision

    found = run_default("openvino", precision, photos)
    expected = run_default("cpu", stored, photos)

    np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0)


@needs_openvino
@needs_bf16
def test_bf16_is_not_fp32(photos: PixelArray) -> None:
    bf16, fp32 = (run_default("openvino", precision, photos) for precision in ("bf16", "fp32"))
    assert np.abs(bf16 - fp32).max() > 1e-3


@needs_openvino
@pytest.mark.parametrize(
    ("stored", "capable", "expected"),
    [("int8", True, "int8"), ("fp32", True, "bf16"), ("fp32", False, "fp32")],
)
def test_precision_auto_is_the_fastest_that_bundle_and_processor_offer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: str, expected: str, *, capable: bool
) -> None:
    bundle = write_tiny_bundle(tmp_path)
    card = bundle.card.model_copy(update={"default_precision": {"cpu": stored}})
    bundle = write_tiny_bundle(tmp_path, card)
    monkeypatch.setattr("service.engine.devices.multiplies_bf16", lambda: capable)

    assert open_engine(bundle, device="openvino").precision == expected


def test_bf16_on_another_device_stops_the_start(tiny_bundle: Bundle) -> None:
    with pytest.raises(StartError, match="bf16: device cpu has none"):
        open_engine(tiny_bundle, device="cpu", precision="bf16")

    assert open_engine(tiny_bundle, device="cpu").precision == "fp32"


@needs_openvino
def test_bf16_on_a_processor_without_it_stops_the_start(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.engine.devices.multiplies_bf16", lambda: False)

    with pytest.raises(StartError, match="bf16: this processor"):
        open_engine(tiny_bundle, device="openvino", precision="bf16")

    assert open_engine(tiny_bundle, device="openvino").precision == "fp32"


def test_device_whose_extra_is_absent_stops_the_start(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.engine.devices.is_installed", lambda: False)

    with pytest.raises(StartError, match="extra `openvino` is not installed"):
        open_engine(tiny_bundle, device="openvino")

    assert open_engine(tiny_bundle, device="cpu").device == "cpu"


@needs_plugin
def test_processor_that_the_plugin_does_not_take_stops_the_start_each_time(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.engine.openvino.ort.get_ep_devices", list)

    for _ in range(2):
        with pytest.raises(StartError, match="takes Intel's processors alone"):
            open_engine(tiny_bundle, device="openvino")

    assert open_engine(tiny_bundle, device="cpu").device == "cpu"


@needs_openvino
def test_damaged_graph_is_refused_with_its_name(tmp_path: Path) -> None:
    graphs = {**tiny_graphs(), "encoder": {"fp32": b"junk" * 100}}

    with pytest.raises(BundleError, match="encoder is not a usable ONNX graph"):
        open_engine(write_tiny_bundle(tmp_path, graphs=graphs), device="openvino")
