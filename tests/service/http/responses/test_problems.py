"""Tests of errors as problems: codes, headers, and details without internal messages."""

from __future__ import annotations

import pytest

from service import errors
from service.errors import ServiceError
from service.http.responses.problems import describe_problem, list_headers
from service.images.formats import FORMATS
from tests.support.serving import list_errors

SECRET = "/srv/bundle/secret at 0x7f00"


@pytest.mark.parametrize("leaf", [error for error in list_errors() if not error.__subclasses__()])
def test_error_that_a_request_can_raise_has_a_code(leaf: type[ServiceError]) -> None:
    stops = leaf in (errors.StartError, errors.ServiceBroken)
    assert (leaf.code == "internal_error") == stops


def test_codes_are_unique_and_come_with_a_status_and_a_title() -> None:
    own = [vars(error) for error in list_errors() if "code" in vars(error)]
    assert len({each["code"] for each in own}) == len(own) > 40
    assert all(each.keys() >= {"status", "title"} for each in own)


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidImage(SECRET),
        errors.UnsupportedImage(SECRET, FORMATS),
        errors.QueueFull(SECRET),
        errors.InferenceFailed(SECRET),
        errors.OutOfMemory(SECRET),
        errors.NotReady(SECRET),
        errors.Draining(SECRET),
        errors.DeadlineExceeded(SECRET),
    ],
    ids=lambda error: type(error).__name__,
)
def test_message_of_an_internal_error_never_reaches_the_client(error: Exception) -> None:
    assert "secret" not in describe_problem(error).model_dump_json()


def test_subclass_has_its_own_code_or_that_of_its_parent() -> None:
    assert describe_problem(errors.OutOfMemory()).code == "out_of_memory"
    assert describe_problem(errors.StoreIncompatible()).code == "store_unavailable"


def test_only_statuses_that_mean_try_again_have_retry_after() -> None:
    found = {error.status for error in list_errors() if "Retry-After" in list_headers(error)}
    assert found == {429, 503}


@pytest.mark.parametrize(("seconds", "sent"), [(0.2, "1"), (1.0, "1"), (6.2, "7")])
def test_retry_after_is_in_whole_seconds_rounded_up(seconds: float, sent: str) -> None:
    assert list_headers(errors.RateLimited(seconds))["Retry-After"] == sent


def test_unsupported_image_lists_the_supported_types() -> None:
    detail = describe_problem(errors.UnsupportedImage("TIFF", FORMATS)).detail
    assert detail is not None
    assert detail.startswith(f"Supported types: {', '.join(FORMATS)}")
    assert ("extra heif" in detail) == ("HEIF" not in FORMATS)
    assert {"JPEG", "PNG", "WEBP", "GIF", "BMP"} <= set(FORMATS)


def test_too_many_pixels_states_the_limit() -> None:
    detail = describe_problem(errors.TooManyPixels(50_000_000)).detail
    assert detail == "At most 50000000 pixels (width x height) are read."


def test_long_lists_of_long_names_are_cut() -> None:
    error = errors.UnknownLabel(tuple("x" * 500 + str(i) for i in range(300)))
    detail = describe_problem(error).detail
    assert detail is not None
    assert detail.endswith("and 290 more.")
    assert len(detail) < 1000


def test_invalid_parameters_name_each_value() -> None:
    value = errors.InvalidValue("query", "top_k", "too small")
    problem = describe_problem(errors.InvalidParameters([value]))
    assert problem.errors is not None
    assert [(v.where, v.name, v.reason) for v in problem.errors] == [
        ("query", "top_k", "too small")
    ]
