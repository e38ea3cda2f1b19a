"""Whatever the OpenAPI document allows, and what it does not: never a server error.

`API_EXAMPLES=1000` makes the examples of each route many; a few are tried on every run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis import Phase as HypothesisPhase
from schemathesis import GenerationMode

from service.bundle import Bundle
from tests.e2e.server_process import ServerProcess
from tests.faults.conftest import serve_command
from tests.serving import assert_still_serving

EXAMPLES = int(os.environ.get("API_EXAMPLES", "8"))
# What a busy or draining service answers on purpose.
MEANT = {503, 504, 507}


@pytest.fixture(scope="module")
def api(open_bundle: Bundle) -> Iterator[Any]:
    flags = ("--label-store", "memory", "--max-label-sets", "20")
    with (
        ServerProcess(*serve_command(open_bundle.path), *flags) as server,
        server.open_client() as client,
    ):
        schema = schemathesis.openapi.from_url(f"{client.base_url}/openapi.json")
        schema.config.generation.update(modes=list(GenerationMode))
        yield schema
        assert_still_serving(client)
        assert "Traceback" not in server.stderr


schema = schemathesis.pytest.from_fixture("api")


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[HypothesisPhase.explicit, HypothesisPhase.generate],
)
def test_no_request_is_a_server_error(case: schemathesis.Case) -> None:
    response = case.call()
    assert response.status_code < httpx.codes.INTERNAL_SERVER_ERROR or (
        response.status_code in MEANT
    ), response.text
