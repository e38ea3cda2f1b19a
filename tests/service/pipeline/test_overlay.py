"""Tests of overlays."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from service.bundle.card import InputContract
from service.pipeline.overlay import LONGEST_SIDE, draw_overlay, find_seen_part

SQUASH = InputContract(height=32, width=32, resize_mode="squash", interpolation="bilinear")
CROP = InputContract(
    height=32, width=32, resize_mode="crop", crop_pct=1.0, interpolation="bilinear"
)


def draw(values: np.ndarray, photo: tuple[int, int], contract: InputContract) -> np.ndarray:
    """Returns the overlay as RGBA, uint8 [height, width, 4]."""
    data = draw_overlay(values.astype(np.float32), photo, contract)
    with Image.open(io.BytesIO(data)) as picture:
        assert picture.format == "PNG"
        return np.asarray(picture.convert("RGBA"))


@settings(max_examples=40)
@given(width=st.integers(1, 9000), height=st.integers(1, 9000))
def test_overlay_has_the_photos_proportions(width: int, height: int) -> None:
    found = draw(np.ones((4, 4)), (width, height), SQUASH)
    assert max(found.shape[:2]) == LONGEST_SIDE
    shrink = LONGEST_SIDE / max(width, height)
    assert abs(found.shape[1] - width * shrink) <= 1
    assert abs(found.shape[0] - height * shrink) <= 1


def test_overlay_is_transparent_at_zero_and_most_opaque_at_the_peak() -> None:
    values = np.zeros((4, 4))
    values[1, 3] = 1
    found = draw(values, (400, 200), SQUASH)
    rows, columns, _ = found.shape
    peak = np.unravel_index(found[..., 3].argmax(), (rows, columns))
    assert (peak[0] * 4 // rows, peak[1] * 4 // columns) == (1, 3)
    assert found[-rows // 4 :, : columns // 4, 3].max() == 0
    assert 100 < found[..., 3].max() < 255  # the photo is to be seen through it


def test_overlay_of_an_empty_map_is_transparent() -> None:
    assert draw(np.zeros((4, 4)), (50, 50), SQUASH)[..., 3].max() == 0


def test_overlay_is_transparent_outside_the_seen_part() -> None:
    found = draw(np.ones((4, 4)), (400, 200), CROP)
    columns = found.shape[1]
    assert found[:, : columns // 4 - 1, 3].max() == found[:, -columns // 4 + 1 :, 3].max() == 0
    assert found[:, columns // 4 + 1 : -columns // 4 - 1, 3].min() > 0


@settings(max_examples=100)
@given(
    width=st.integers(1, 500),
    height=st.integers(1, 500),
    crop_pct=st.floats(0.1, 1.0),
    input_size=st.tuples(st.integers(1, 300), st.integers(1, 300)),
)
def test_seen_part_is_in_the_middle_of_the_picture(
    width: int, height: int, crop_pct: float, input_size: tuple[int, int]
) -> None:
    update = {"crop_pct": crop_pct, "height": input_size[0], "width": input_size[1]}
    contract = CROP.model_copy(update=update)
    left, top, right, bottom = find_seen_part((width, height), contract)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    assert abs(left - (width - right)) <= 1
    assert abs(top - (height - bottom)) <= 1


@pytest.mark.parametrize("size", [(1, 65_500), (65_500, 1)])
def test_longest_strips_are_drawn(size: tuple[int, int]) -> None:
    assert min(draw(np.ones((8, 8)), size, CROP).shape[:2]) == 1
