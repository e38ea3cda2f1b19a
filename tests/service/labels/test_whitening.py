"""The whitening: whitens embeddings, gives every direction the same scale, refuses damage."""

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from service.errors import BundleError
from service.labels.whitening import MIN_PHOTOS, Whitening, fit_whitening, read_whitening

WIDTH = 24


def embed(count: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Returns embeddings of length 1 with very different variances."""
    random = np.random.default_rng(seed)
    rows = 3 + random.normal(0, np.geomspace(2, 0.05, WIDTH), (count, WIDTH))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def whitening() -> Whitening:
    return fit_whitening(embed(3 * MIN_PHOTOS))


@pytest.mark.parametrize("seed", range(3))
def test_projection_has_mean_0_and_deviation_1_over_other_photos(
    whitening: Whitening, seed: int
) -> None:
    direction = np.random.default_rng(seed).normal(0, 1, WIDTH).astype(np.float32)
    vector, offset = whitening.project(direction)
    held_out = whitening.arrays["held_out"].astype(np.float32)
    values = held_out @ vector + offset
    assert (values.mean(), values.std()) == pytest.approx((0, 1), abs=1e-3)
    mean, deviation = whitening.measure(direction)
    direct = (whitening.whiten(held_out) @ direction - mean) / deviation
    np.testing.assert_allclose(values, direct, atol=1e-3)


def test_background_is_read_as_it_was_written(whitening: Whitening) -> None:
    found = read_whitening(whitening.to_bytes())
    assert (found.width, len(found.arrays["held_out"])) == (WIDTH, 200)
    np.testing.assert_array_equal(found.whiten(embed(5)), whitening.whiten(embed(5)))


def damage(content: bytes) -> bytes:
    # The first bytes of an array, which the archive's checksum covers.
    return content[:200] + bytes(20) + content[220:]


def change(content: bytes, *, compress: bool = False, **changes: object) -> bytes:
    file = io.BytesIO()
    with np.load(io.BytesIO(content)) as arrays:
        (np.savez_compressed if compress else np.savez)(file, **{**arrays, **changes})
    return file.getvalue()


FLAT, CUBE = np.zeros((1000, WIDTH), np.float16), np.zeros((2, WIDTH, 2))


@pytest.mark.parametrize(
    "make",
    [
        lambda _: b"",
        lambda _: b"no archive",
        partial(change, mean=np.array([object()])),
        lambda content: content[:-50],
        damage,
        lambda content: content[: content.index(b"PK", 4)],
        partial(change, compress=True, held_out=FLAT),
        partial(change, mean=np.zeros((WIDTH, 2)), held_out=CUBE),
        partial(change, variances=np.ones(WIDTH), components=np.eye(WIDTH)),
    ],
)
def test_damaged_file_is_a_bundle_error(
    whitening: Whitening, make: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(BundleError, match="background"):
        read_whitening(make(whitening.to_bytes()))
    assert read_whitening(whitening.to_bytes()).width == WIDTH


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mean", np.zeros(WIDTH + 1)),
        ("mean", np.full(WIDTH, np.nan)),
        ("rest", np.zeros(())),
        ("held_out", np.zeros((1, WIDTH))),
        ("components", np.array("text")),
    ],
)
def test_arrays_that_do_not_fit_are_a_bundle_error(
    whitening: Whitening, name: str, value: Any
) -> None:
    with pytest.raises(BundleError):
        Whitening({**whitening.arrays, name: value})
    with pytest.raises(BundleError):
        Whitening({key: array for key, array in whitening.arrays.items() if key != name})
