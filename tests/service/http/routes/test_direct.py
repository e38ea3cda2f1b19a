"""Direct routes skip the framework, and none of the guards that they are declared with."""

from __future__ import annotations

import pytest
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.testclient import TestClient

from service.http.responses.problems import add_problem_handlers
from service.http.routes.direct import DirectRoute
from service.http.security.keys import ADMINISTRATE, PREDICT, KeyRing
from service.http.security.rates import LIMITED
from service.settings import Settings

PREDICT_KEY, ADMIN_KEY = "predict-key-000001", "admin-key-00000001"


class CountingLimiter:
    """Notes who was counted."""

    def __init__(self) -> None:
        self.callers: list[str] = []

    def count(self, caller: str) -> None:
        self.callers.append(caller)


async def answer(request: Request) -> Response:
    return Response(request.url.path)


@pytest.fixture
def limiter() -> CountingLimiter:
    return CountingLimiter()


@pytest.fixture
def client(limiter: CountingLimiter) -> TestClient:
    """An app with a route for each kind of key."""
    app = FastAPI()
    for path, guards in (("/predict", [*PREDICT, LIMITED]), ("/change", [*ADMINISTRATE])):
        router = APIRouter(route_class=DirectRoute, dependencies=guards)
        router.post(path)(answer)
        app.router.routes.extend(router.routes)
    app.state.keys = KeyRing(
        Settings(predict_keys=PREDICT_KEY, admin_keys=ADMIN_KEY)  # type: ignore[arg-type]
    )
    app.state.rates = limiter
    add_problem_handlers(app)
    return TestClient(app)


def test_route_asks_for_the_key_that_it_was_declared_with(client: TestClient) -> None:
    known, admin = {"X-API-Key": PREDICT_KEY}, {"X-API-Key": ADMIN_KEY}

    assert client.post("/change", headers=known).status_code == 403
    assert client.post("/change").status_code == 401
    assert client.post("/predict").status_code == 401

    assert client.post("/change", headers=admin).text == "/change"
    assert client.post("/predict", headers=known).text == "/predict"


def test_route_counts_callers_only_where_it_was_declared_to(
    client: TestClient, limiter: CountingLimiter
) -> None:
    client.post("/change", headers={"X-API-Key": ADMIN_KEY})
    assert not limiter.callers

    client.post("/predict", headers={"X-API-Key": PREDICT_KEY})
    assert len(limiter.callers) == 1
