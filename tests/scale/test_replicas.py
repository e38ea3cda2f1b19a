"""Three replicas, one PostgreSQL and one nginx, while replicas are killed and restarted.

The proxy's configuration is the one in `deploy/nginx`. `SCALE_TEST=full` (`make test-scale`) asks
for more rounds and holds the service to its two seconds; without it a few rounds show the same.
"""

import os
from collections.abc import Iterator
from functools import partial

import httpx2 as httpx
import pytest

from service.bundle.reader import Bundle
from tests.scale.replicas import Load, Replicas
from tests.support.postgres import Postgres
from tests.support.serving import assert_problem, send_image
from tests.support.threads import wait_until

FULL = os.environ.get("SCALE_TEST") == "full"
COUNT = 3
KILLS = 6 if FULL else 1
ROLLING = COUNT if FULL else 1
PREDICTING, REGISTERING = (6, 2) if FULL else (3, 1)
# The promise is 2 s; a busy test machine may take longer.
CONVERGED_SECONDS = 2.0 if FULL else 30.0


@pytest.fixture(scope="module")
def replicas(
    open_bundle: Bundle, postgres: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Replicas]:
    running = Replicas(open_bundle.path, postgres.url, tmp_path_factory.mktemp("nginx"), COUNT)
    yield running
    running.close()


def ask(client: httpx.Client, label_set: str, **parameters: str) -> httpx.Response:
    return send_image(client, params={"label_set": label_set, **parameters})


def predict(client: httpx.Client, label_set: str) -> int:
    return ask(client, label_set).status_code


def stored_names(client: httpx.Client) -> set[str]:
    listed = client.get("/labels").json()["label_sets"]
    return {entry["name"] for entry in listed if entry["origin"] == "store"}


def delete_all(replicas: Replicas) -> None:
    with replicas.open_client() as client:
        for name in stored_names(client):
            client.delete(f"/labels/{name}")


def assert_all_are_served_by_all(replicas: Replicas, names: list[str]) -> None:
    for index in range(COUNT):
        with replicas.open_client(index) as client:
            is_converged = partial(lambda c: set(names) <= stored_names(c), client)
            wait_until(is_converged, CONVERGED_SECONDS)
            assert predict(client, names[-1]) == 200


@pytest.mark.parametrize("killed", [True, False])
def test_lost_replica_loses_no_acknowledged_label_and_no_request(
    replicas: Replicas, killed: bool
) -> None:
    name, rounds = ("kill", KILLS) if killed else ("roll", ROLLING)
    with Load(replicas, name, PREDICTING, REGISTERING) as load:
        for number in range(rounds):
            load.wait_for_more(20, 5)
            if killed:
                replicas.kill(number % COUNT)
            else:
                assert replicas.stop(number) == 0
            load.wait_for_more(20, 5)
            replicas.start(number % COUNT)
        load.wait_for_more(10, 3)
    # nginx sent the requests of the killed replica to another.
    assert set(load.predicted) == {200}, (load.predicted, replicas.proxy.log.read_text())
    assert load.refused == []
    assert_all_are_served_by_all(replicas, load.acknowledged)
    delete_all(replicas)


def test_unreachable_database_refuses_registrations_but_no_predictions(
    replicas: Replicas, postgres: Postgres
) -> None:
    with replicas.open_client() as client:
        assert client.post("/labels", json={"name": "kept", "labels": ["x"]}).status_code == 201
        assert_all_are_served_by_all(replicas, ["kept"])
        postgres.stop()
        try:
            # Every replica refuses several times and continues to predict.
            for number in range(2 * COUNT):
                refused = client.post("/labels", json={"name": f"n{number}", "labels": ["x"]})
                assert refused.status_code == 503
                assert refused.json()["code"] == "store_unavailable"
                missed = ask(client, "trained", min_version="1000000")
                assert missed.json()["code"] == "store_unavailable"
                assert predict(client, "trained") == 200
            assert_set_that_one_replica_lost_is_had_from_the_others(replicas, client)
        finally:
            postgres.start()
        again = {"name": "again", "labels": ["x"]}
        wait_until(lambda: client.post("/labels", json=again).status_code == 201)
    delete_all(replicas)


def assert_set_that_one_replica_lost_is_had_from_the_others(
    replicas: Replicas, client: httpx.Client
) -> None:
    assert replicas.stop(0) == 0
    replicas.start(0)
    with replicas.open_client(0) as restarted:
        refused = ask(restarted, "kept")
        assert_problem(refused, 503, "store_unavailable")
        assert int(refused.headers["retry-after"]) > 0
        assert predict(restarted, "trained") == 200
    # Requests for an unknown set mark no replica as down.
    for _ in range(2 * COUNT):
        assert ask(client, "unknown").json()["code"] == "store_unavailable"
        assert predict(client, "kept") == 200
        assert predict(client, "trained") == 200
