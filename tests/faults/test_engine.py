"""Faults of the engine: they cost the batch that met them, and nothing else."""

from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from service.bundle.reader import Bundle
from tests.e2e.server_process import ServerProcess
from tests.faults.faulty_process import FaultyProcess
from tests.faults.faulty_server import make_fault
from tests.support.serving import (
    PHOTO,
    assert_problem,
    assert_still_serving,
    send_image,
    send_images,
)


@pytest.fixture(scope="module")
def server(
    open_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    with FaultyProcess(open_bundle, tmp_path_factory.mktemp("faults")) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with server.open_client() as client:
        yield client
        assert_still_serving(client)


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [("FAIL", 500, "inference_failed"), ("MEMORY", 503, "out_of_memory")],
)
def test_failed_batch_is_500_without_cause_and_the_next_one_is_answered(
    client: httpx.Client, fault: str, status: int, code: str
) -> None:
    for response in (
        send_image(client, make_fault(fault)),
        send_images(client, [PHOTO, make_fault(fault)]),
    ):
        assert_problem(response, status, code)
        assert "secret" not in response.text
        assert ("retry-after" in response.headers) == (status == 503)
    assert client.get("/readyz").status_code == 200


def test_hung_engine_fails_readiness_and_ends_the_process(
    open_bundle: Bundle, tmp_path: Path
) -> None:
    # A drain that waited for the run would take longer than this test waits.
    flags = ("--deadline-ms", "500", "--drain-seconds", "600")
    with (
        FaultyProcess(open_bundle, tmp_path, *flags, FAULTS_RUN_SECONDS="1") as server,
        server.open_client() as client,
    ):
        assert_problem(send_image(client, make_fault("HOLD")), 504, "deadline_exceeded")
        assert server.wait() == 3
        assert server.stderr.splitlines()[-1] == "ml-decoder: the batcher died: see the log"
        assert "a run of the batcher hangs" in server.stderr
