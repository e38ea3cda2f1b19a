"""One server for the tests that leave it as it was, and a client that proves that they do."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx2 as httpx
import pytest

from service.bundle.reader import Bundle
from tests.e2e.server_process import ServerProcess, serve_command
from tests.support.serving import assert_still_serving

MAX_BODY_BYTES = 500_000


@pytest.fixture(scope="package")
def server(open_bundle: Bundle) -> Iterator[ServerProcess]:
    limits = ("--max-body-bytes", str(MAX_BODY_BYTES), "--max-pixels", "300000")
    timeouts = ("--header-timeout-seconds", "3", "--body-timeout-seconds", "3")
    with serve(open_bundle, *limits, *timeouts, "--max-labels-per-set", "50") as (server, _):
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    """A client of the shared server; a good request has to be answered afterwards."""
    with server.open_client() as client:
        yield client
        assert_still_serving(client)
    assert "Traceback" not in server.stderr


@contextmanager
def serve(
    bundle: Bundle, *flags: str, **variables: str
) -> Iterator[tuple[ServerProcess, httpx.Client]]:
    """Yields a server with a label store in memory, and a client."""
    command = serve_command(bundle, "--label-store", "memory", *flags)
    with ServerProcess(*command, **variables) as server, server.open_client() as client:
        yield server, client
