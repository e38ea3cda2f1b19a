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
    coded = [vars(error) for error in list_errors() if "code" in vars(error)]
    assert len({error["code"] for error in coded}) == len(coded) > 40
    assert all(error.keys() >= {"status", "title"} for error in coded)


def test_unsupported_image_lists_the_supported_types() -> None:
    detail = errors.UnsupportedImage("TIFF", FORMATS).detail
    assert detail.startswith("The file's type is TIFF: save the image in another format.")
    assert f"Supported types: {', '.join(FORMATS)}" in detail
    assert ("extra heif" in detail) == ("HEIF" not in FORMATS)
    assert {"JPEG", "PNG", "WEBP", "GIF", "BMP"} <= set(FORMATS)


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (errors.TooManyPixels(50), "At most 50 pixels (width x height) are read."),
        (errors.TooManyPixels(65, where="on a side"), "At most 65 pixels on a side are read."),
        (errors.BodyTimeout(0.5), "The request body did not arrive within 0.5 seconds."),
        (errors.MissingField("image"), "Field 'image' is missing."),
        (errors.OtherEmbeddings("a", "b\n{}"), r"embedding_space is 'a'; the model's is 'b\n{}'."),
        (errors.MalformedBody("no {}"), "no {}."),
        (errors.LabelSetReadOnly("x" * 99), f"'{'x' * 80}': choose another name."),
        (
            errors.NoOpenHead(),
            "Other labels need a bundle with an open head, or photos from which they learn.",
        ),
    ],
)
def test_detail_has_the_values_in_quotes(error: ServiceError, detail: str) -> None:
    assert error.detail == detail


def test_long_lists_of_long_names_are_cut() -> None:
    names = tuple("x" * 500 + str(i) for i in range(300))
    detail = errors.UnknownLabel(names, names, ((),)).detail
    assert detail.count(" and 290 more.") == 2
    assert len(detail) < 2000
