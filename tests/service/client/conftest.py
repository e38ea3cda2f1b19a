"""A real server for the client, and a fake one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from service.bundle import Bundle
from tests.e2e.server_process import ServerProcess
from tests.fake_service import FakeService, run_fake


@pytest.fixture(scope="session")
def server_url(open_bundle: Bundle) -> Iterator[str]:
    flags = ("--bundle", str(open_bundle.path), "--label-store", "memory")
    with (
        ServerProcess("serve", "--port", "0", "--device", "cpu", *flags) as server,
        server.open_client() as client,
    ):
        yield str(client.base_url).rstrip("/")


@pytest.fixture
def fake() -> Iterator[tuple[FakeService, str]]:
    with run_fake() as fake:
        yield fake
