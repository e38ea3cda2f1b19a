"""Tests of the tree of errors: codes, and details that clients read."""

import pytest

from service import errors
from service.errors import ServiceError
from service.images.formats import FORMATS
from tests.support.serving import list_errors


@pytest.mark.parametrize("leaf", [error for error in list_errors() if not error.__subclasses__()])
def test_error_that_a_request_can_raise_has_a_code(leaf: type[ServiceError]) -> None:
    stops = leaf in (errors.StartError, errors.ServiceBroken)
    assert (leaf.code == "internal_error") == stops


def test_codes_are_unique_and_come_with_a_status_and_a_title() -> None:
    own = [vars(error) for error in list_errors() if "code" in vars(error)]
    assert len({each["code"] for each in own}) == len(own) > 40
    assert all(each.keys() >= {"status", "title"} for each in own)


def test_subclass_has_its_own_code_or_that_of_its_parent() -> None:
    assert errors.OutOfMemory().code == "out_of_memory"
    assert errors.StoreIncompatible().code == "store_unavailable"


def test_unsupported_image_lists_the_supported_types() -> None:
    detail = errors.UnsupportedImage("TIFF", FORMATS).detail
    assert detail is not None
    assert detail.startswith("The file's type is TIFF: save the image in another format.")
    assert f"Supported types: {', '.join(FORMATS)}" in detail
    assert ("extra heif" in detail) == ("HEIF" not in FORMATS)
    assert {"JPEG", "PNG", "WEBP", "GIF", "BMP"} <= set(FORMATS)


def test_too_many_pixels_states_the_limit() -> None:
    detail = errors.TooManyPixels(50_000_000).detail
    assert detail == "At most 50000000 pixels (width x height) are read."
    detail = errors.TooManyPixels(65_535, where="on a side").detail
    assert detail == "At most 65535 pixels on a side are read."


def test_long_lists_of_long_names_are_cut() -> None:
    names = tuple("x" * 500 + str(i) for i in range(300))
    detail = errors.UnknownLabel(names, names, ()).detail
    assert detail is not None
    assert detail.count(" and 290 more.") == 2
    assert len(detail) < 2000
