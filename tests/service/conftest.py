"""The app of the HTTP tests, one for each file."""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from service.bundle.reader import Bundle
from tests.support.serving import MAX_BODY_BYTES, assert_still_serving, serve_app


@pytest.fixture(scope="module")
def shared_client(tiny_bundle: Bundle) -> Iterator[TestClient]:
    with serve_app(tiny_bundle.path, max_body_bytes=MAX_BODY_BYTES, max_pixels=300_000) as client:
        yield client


@pytest.fixture
def client(shared_client: TestClient) -> Iterator[TestClient]:
    """The app; whatever a test does to it, a good request has to be answered afterwards."""
    yield shared_client
    assert_still_serving(shared_client)
