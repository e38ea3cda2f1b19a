"""The preparation of photos in words; fields that a bundle does not use are not written."""

from typing import Any

import pytest

from service.bundle.card import InputContract

SQUASH = InputContract(height=32, width=48, resize_mode="squash", interpolation="bilinear")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "squashed, bilinear to 48 x 32"),
        ({"mean": (0.5,) * 3, "std": (0.25, 0.5, 1.0)},
         "squashed, bilinear to 48 x 32, mean 0.5 0.5 0.5, std 0.25 0.5 1"),
        ({"resize_mode": "crop", "crop_pct": 0.875},
         "cropped to the centre (0.875 of the shorter side), bilinear to 48 x 32"),
        ({"resize_mode": "pad"}, "padded to a white square, bilinear to 48 x 32"),
        ({"resize_mode": "pad", "pad_color": (0, 1, 255), "fit_size": 64},
         "fitted into 64 x 64, bilinear, and padded with #0001ff, bilinear to 48 x 32"),
    ],
)  # fmt: skip
def test_preparation_is_described_in_one_line(changes: dict[str, Any], expected: str) -> None:
    assert SQUASH.model_copy(update=changes).describe() == expected


def test_fields_of_padding_are_written_when_a_bundle_uses_them() -> None:
    known = {"height", "width", "resize_mode", "crop_pct", "interpolation", "mean", "std"}
    assert SQUASH.model_dump().keys() == known
    changes = {"resize_mode": "pad", "pad_color": (1, 2, 3), "fit_size": 64}
    padded = SQUASH.model_copy(update=changes | {"fit_interpolation": "lanczos"})
    assert padded.model_dump().keys() - known == {"pad_color", "fit_size", "fit_interpolation"}
    assert InputContract.model_validate_json(padded.model_dump_json()) == padded
