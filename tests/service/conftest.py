"""The app of the HTTP tests, one for each file, whose `BUNDLE` and `SETTINGS` it has."""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from tests.support.serving import MAX_BODY_BYTES, assert_still_serving, serve_app

_SMALL = {"max_body_bytes": MAX_BODY_BYTES, "max_pixels": 300_000}


@pytest.fixture(scope="module")
def shared_client(request: pytest.FixtureRequest) -> Iterator[TestClient]:
    bundle = request.getfixturevalue(getattr(request.module, "BUNDLE", "tiny_bundle"))
    with serve_app(bundle.path, **getattr(request.module, "SETTINGS", _SMALL)) as client:
        yield client


@pytest.fixture
def client(shared_client: TestClient) -> Iterator[TestClient]:
    """The app; whatever a test does to it, a good request has to be answered afterwards."""
    yield shared_client
    assert_still_serving(shared_client)
