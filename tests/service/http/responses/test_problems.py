"""Tests of the headers of problems."""

import pytest

from service import errors
from service.http.responses.problems import list_headers
from tests.support.serving import list_errors


def test_only_statuses_that_mean_try_again_have_retry_after() -> None:
    statuses = {error.status for error in list_errors() if "Retry-After" in list_headers(error)}
    assert statuses == {429, 503}


@pytest.mark.parametrize(("seconds", "sent"), [(0.2, "1"), (1.0, "1"), (6.2, "7")])
def test_retry_after_is_in_whole_seconds_rounded_up(seconds: float, sent: str) -> None:
    assert list_headers(errors.RateLimited(seconds))["Retry-After"] == sent
