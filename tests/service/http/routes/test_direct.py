"""Direct routes skip the framework, but none of their guards; a full queue refuses predictions."""

from collections.abc import Iterator

import pytest
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.testclient import TestClient

from service.bundle.reader import Bundle
from service.errors import QueueFull
from service.http.responses.problems import add_problem_handlers
from service.http.routes.direct import DirectRoute
from service.http.security.keys import ADMINISTRATE, PREDICT, KeyRing
from service.http.security.rates import LIMITED
from service.scheduling.queue import BatchQueue
from service.settings import Settings
from tests.support.serving import PHOTO, assert_problem, assert_still_serving, send_image, serve_app

ORIGIN = "https://a.example"
ROOT_PATH = "/tags"
PREDICT_KEY, ADMIN_KEY = "predict-key-000001", "admin-key-00000001"


async def answer(request: Request) -> Response:
    return Response(request.url.path)


class CountingRates:
    """Takes the place of the rate limiter; refuses nothing."""

    def __init__(self) -> None:
        self.callers: list[str] = []

    def count(self, caller: str) -> None:
        self.callers.append(caller)


@pytest.fixture
def rates() -> CountingRates:
    return CountingRates()


@pytest.fixture
def client(rates: CountingRates) -> TestClient:
    """An app with a route for each kind of key."""
    app = FastAPI()
    for path, guards in (("/predict", [*PREDICT, LIMITED]), ("/change", [*ADMINISTRATE])):
        router = APIRouter(route_class=DirectRoute, dependencies=guards)
        router.post(path)(answer)
        app.router.routes.extend(router.routes)
    app.state.keys = KeyRing(
        Settings(predict_keys=PREDICT_KEY, admin_keys=ADMIN_KEY)  # type: ignore[arg-type]
    )
    app.state.rates = rates
    add_problem_handlers(app)
    return TestClient(app)


def test_route_requires_its_kind_of_key(client: TestClient) -> None:
    known, admin = {"X-API-Key": PREDICT_KEY}, {"X-API-Key": ADMIN_KEY}

    assert client.post("/change", headers=known).status_code == 403
    assert client.post("/change").status_code == 401
    assert client.post("/predict").status_code == 401

    assert client.post("/change", headers=admin).text == "/change"
    assert client.post("/predict", headers=known).text == "/predict"


def test_route_counts_callers_only_if_it_is_limited(
    client: TestClient, rates: CountingRates
) -> None:
    client.post("/change", headers={"X-API-Key": ADMIN_KEY})
    assert rates.callers == []

    client.post("/predict", headers={"X-API-Key": PREDICT_KEY})
    assert len(rates.callers) == 1


def refuse(_queue: object) -> None:
    full = QueueFull("the queue is full")
    full.retry_after_seconds = 6.2
    raise full


@pytest.fixture(scope="module")
def full_client(tiny_bundle: Bundle) -> Iterator[TestClient]:
    """A service below a root path whose queue is full; at the end it answers below both paths."""
    with serve_app(tiny_bundle.path, cors_origins=ORIGIN, root_path=ROOT_PATH) as client:
        assert_still_serving(client)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BatchQueue, "check_room", refuse)
            yield client
        for path in ("/predict", f"{ROOT_PATH}/predict"):
            response = client.post(path, content=PHOTO, headers={"Content-Type": "image/png"})
            assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    "path", ["/predict", "/predict?top_k=0", "/predict/batch", f"{ROOT_PATH}/predict"]
)
def test_prediction_is_refused_when_the_queue_is_full(full_client: TestClient, path: str) -> None:
    for content in (b"", b"junk", b"x" * 3_000_000):
        response = full_client.post(path, content=content, headers={"X-Request-ID": "abc"})
        assert_problem(response, 429, "queue_full")
        assert response.json()["request_id"] == response.headers["x-request-id"] == "abc"
        assert response.headers["retry-after"] == "7"
        assert response.headers["x-content-type-options"] == "nosniff"


def test_pages_of_permitted_origins_may_read_the_refusal(full_client: TestClient) -> None:
    response = send_image(full_client, headers={"Origin": ORIGIN})
    assert_problem(response, 429, "queue_full")
    assert response.headers["access-control-allow-origin"] == ORIGIN


def test_refusals_are_counted_with_their_route(full_client: TestClient) -> None:
    assert send_image(full_client).status_code == 429
    metrics = full_client.get("/metrics").text
    assert 'ml_decoder_rejected_total{reason="queue_full"}' in metrics
    assert 'request_seconds_count{method="POST",path="/predict",status="429"}' in metrics
