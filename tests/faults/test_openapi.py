"""Tests that no request, valid by the OpenAPI document or not, is a server error.

A few examples of each route are tried on every run, many with `API_EXAMPLES=1000`; then also
`-o faulthandler_timeout=0`, which may end a running test.
"""

import os
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from service.bundle.reader import Bundle
from tests.faults.conftest import serve
from tests.support.serving import assert_still_serving

EXAMPLES = int(os.environ.get("API_EXAMPLES", "5"))
# Statuses that a busy or draining service answers on purpose.
MEANT = {503, 504, 507}
EXPLORING = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)


@pytest.fixture(scope="module")
def api(open_bundle: Bundle) -> Iterator[Any]:
    with serve(open_bundle, "--max-label-sets", "20") as (server, client):
        yield schemathesis.openapi.from_url(f"{client.base_url}/openapi.json")
        assert_still_serving(client)
        assert "Traceback" not in server.stderr


@pytest.mark.parametrize("mode", GenerationMode)
def test_no_request_is_a_server_error(api: Any, mode: GenerationMode) -> None:
    operations = [operation.ok() for operation in api.get_all_operations()]
    assert len(operations) >= 9
    for operation in operations:
        if mode.is_negative and not (
            operation.query or operation.body or operation.path_parameters
        ):
            continue  # there is nothing to be wrong about

        @given(case=operation.as_strategy(generation_mode=mode))
        @EXPLORING
        def ask(case: schemathesis.Case) -> None:
            response = case.call()
            status = response.status_code
            assert status < httpx.codes.INTERNAL_SERVER_ERROR or status in MEANT, response.text

        ask()
