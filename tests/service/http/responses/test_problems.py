"""Tests of the table: every error has its row, and no row tells more than it may."""

from __future__ import annotations

import pytest

from service import errors
from service.errors import ServiceError
from service.http.requests import errors as request_errors
from service.http.responses.problems import PROBLEM_KINDS, describe_problem, find_kind
from service.images.formats import FORMATS

SECRET = "/srv/bundle/secret at 0x7f00"


def find_leaves(error: type[ServiceError]) -> list[type[ServiceError]]:
    children = error.__subclasses__()
    return [leaf for child in children for leaf in find_leaves(child)] or [error]


@pytest.mark.parametrize("leaf", find_leaves(ServiceError))
def test_every_error_that_a_request_can_raise_has_a_row(leaf: type[ServiceError]) -> None:
    listed = any(ancestor in PROBLEM_KINDS for ancestor in leaf.__mro__)
    assert listed or leaf in (errors.StartError, errors.ServiceBroken)


def test_codes_are_unique() -> None:
    codes = [kind.code for kind in PROBLEM_KINDS.values()]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidImage(SECRET),
        errors.UnsupportedImage(SECRET),
        errors.QueueFull(SECRET),
        errors.InferenceFailed(SECRET),
        errors.OutOfMemory(SECRET),
        errors.NotReady(SECRET),
        errors.Draining(SECRET),
        errors.DeadlineExceeded(SECRET),
        RuntimeError(SECRET),
    ],
    ids=lambda error: type(error).__name__,
)
def test_text_of_an_error_from_inside_never_reaches_the_client(error: Exception) -> None:
    assert "secret" not in describe_problem(error).model_dump_json()


def test_error_that_is_not_listed_is_an_internal_error() -> None:
    assert (find_kind(KeyError()).status, find_kind(KeyError()).code) == (500, "internal_error")


def test_subclass_takes_its_own_row_before_that_of_its_parent() -> None:
    assert find_kind(errors.OutOfMemory()).code == "out_of_memory"


def test_only_statuses_that_mean_try_again_carry_retry_after() -> None:
    assert {k.status for k in PROBLEM_KINDS.values() if k.retry_after_seconds} == {429, 503}


def test_unsupported_image_lists_what_is_supported() -> None:
    detail = describe_problem(errors.UnsupportedImage()).detail
    assert detail is not None
    assert detail.startswith(f"Supported types: {', '.join(FORMATS)}")
    assert ("extra heif" in detail) == ("HEIF" not in FORMATS)
    assert {"JPEG", "PNG", "WEBP", "GIF", "BMP"} <= set(FORMATS)


def test_too_many_pixels_tells_how_many_are_read() -> None:
    detail = describe_problem(errors.TooManyPixels(50_000_000)).detail
    assert detail == "At most 50000000 pixels (width x height) are read."


def test_long_lists_of_long_names_are_cut() -> None:
    error = errors.UnknownLabel(tuple("x" * 500 + str(i) for i in range(300)))
    detail = describe_problem(error).detail
    assert detail is not None
    assert detail.endswith("and 290 more.")
    assert len(detail) < 1000


def test_invalid_parameters_name_each_value() -> None:
    value = request_errors.InvalidValue("query", "top_k", "too small")
    problem = describe_problem(request_errors.InvalidParameters([value]))
    assert problem.errors is not None
    assert [(v.where, v.name, v.reason) for v in problem.errors] == [
        ("query", "top_k", "too small")
    ]
