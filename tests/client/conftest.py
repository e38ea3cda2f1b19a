"""Both clients, and a real and a fake server."""

import asyncio
from collections.abc import Iterator
from typing import Any, Self

import pytest

from ml_decoder_client import AsyncClient, Client
from service.bundle.reader import Bundle
from tests.e2e.server_process import ServerProcess, serve_command
from tests.support.fake_service import FakeService, run_fake
from tests.support.photos import make_photo

Fake = tuple[FakeService, str]
LABEL_SET = {
    **{"name": "set", "version": "1", "origin": "registered", "read_only": False},
    **{"num_labels": 0, "labels": []},
}


class Awaited:
    """`AsyncClient` with the methods of `Client`, so that a test can run with both."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncClient(*arguments, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.close())
        self._runner.close()

    def predict_many(self, *arguments: Any, **options: Any) -> list[Any]:
        async def collect() -> list[Any]:
            return [found async for found in self._client.predict_many(*arguments, **options)]

        return self._runner.run(collect())

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        return lambda *arguments, **options: self._runner.run(method(*arguments, **options))


@pytest.fixture(params=[Client, Awaited])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="session")
def server_url(learning_bundle: Bundle) -> Iterator[str]:
    command = serve_command(learning_bundle, "--label-store", "memory")
    with ServerProcess(*command) as server, server.open_client() as client:
        yield str(client.base_url).rstrip("/")


@pytest.fixture
def client(kind: Any, server_url: str) -> Iterator[Any]:
    with kind(server_url) as client:
        yield client
        assert client.predict(make_photo(), top_k=1).labels, "a good request still works"


@pytest.fixture
def fake() -> Iterator[Fake]:
    with run_fake() as fake:
        yield fake
