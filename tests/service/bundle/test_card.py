"""The preparation of photos in words; fields that a bundle does not use are not written."""

from typing import Any

import pytest

from service.bundle.card import InputContract

SQUASH = InputContract(height=32, width=48, resize_mode="squash", interpolation="bilinear")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"mean": (0.5,) * 3, "std": (0.25, 0.5, 1.0)},
         "squashed, bilinear to 48 x 32, mean 0.5 0.5 0.5, std 0.25 0.5 1"),
        ({"resize_mode": "crop", "crop_pct": 0.875},
         "cropped to the centre (0.875 of the shorter side), bilinear to 48 x 32"),
        ({"resize_mode": "pad", "pad_color": (0, 1, 255), "fit_size": 64},
         "bilinear into 64 x 64, padded to a #0001ff square, bilinear to 48 x 32"),
    ],
)  # fmt: skip
def test_preparation_is_described_in_one_line(changes: dict[str, Any], expected: str) -> None:
    assert SQUASH.model_copy(update=changes).describe() == expected


def test_fields_of_padding_are_written_when_a_bundle_uses_them() -> None:
    changes = {"pad_color": (1, 2, 3), "fit_size": 64, "fit_interpolation": "lanczos"}
    padded = SQUASH.model_copy(update={"resize_mode": "pad", **changes})
    assert padded.model_dump().keys() - SQUASH.model_dump().keys() == changes.keys()
    assert InputContract.model_validate_json(padded.model_dump_json()) == padded
