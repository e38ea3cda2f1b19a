"""`ml-decoder bench` against a fake service."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from service.cli import commands as cli
from tests.service.cli.conftest import Run, assert_refused, run_without
from tests.support.fake_service import FakeService, run_fake


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[FakeService, str]]:
    with run_fake() as fake:
        yield fake


@pytest.fixture
def service(address: tuple[FakeService, str]) -> FakeService:
    address[0].answers = [(200, {})]
    address[0].requests.clear()
    return address[0]


@pytest.fixture
def bench(run: Run, address: tuple[FakeService, str]) -> Run:
    return partial(run, "bench", "--url", address[1], "--seconds", 0.1)


def test_bench_needs_no_onnx_runtime(address: tuple[FakeService, str], photo: Path) -> None:
    command = ("bench", "--url", address[1], "--seconds", "0.1", "--json", str(photo.parent))
    done = run_without(["onnxruntime"], command)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["answers"] > 0


def test_bench_measures_answers(bench: Run, service: FakeService) -> None:
    code, out, err = bench("--clients", 2, "--json")
    figures = json.loads(out)
    assert (code, err, figures["errors"]) == (0, "", {})
    assert figures["answers"] == len(service.requests) - 1, "the first one is not counted"
    assert 0 < figures["p50_ms"] <= figures["p95_ms"] <= figures["p99_ms"]


@pytest.mark.parametrize(
    ("answer", "error"),
    [((429, {"Retry-After": "9"}), "429"), ((200, {"Content-Encoding": "gzip"}), "unreadable")],
)
def test_bench_counts_errors_and_does_not_retry(
    bench: Run, service: FakeService, answer: tuple[int, dict[str, str]], error: str
) -> None:
    service.answers = [(200, {}), answer]
    _, table, _ = bench("--clients", 1)
    cells = table.replace("│", " ").split()
    assert cells[cells.index("answers") + 1] == "0"
    assert f'{{"{error}": {len(service.requests) - 1}}}' in table


def test_bench_writes_one_line_without_a_service_or_a_client(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "ml-decoder: cannot connect to http://127.0.0.1:9: "
    assert_refused(run, reason, "bench", "--url", "http://127.0.0.1:9")
    monkeypatch.setattr(cli.importlib.util, "find_spec", lambda _name: None)
    assert_refused(run, "pip install ./client", "bench")


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--url", "http://localhost:65616"), "invalid url 'http://localhost:65616'"),
        (("--api-key", "clé"), "api_key must be printable ASCII"),
        (("--label-set", "\udcff"), r"invalid label set name '\udcff'"),
        (("none.jpg",), "none.jpg: No such file or directory"),
    ],
)
def test_bench_writes_one_line_for_an_invalid_argument(
    bench: Run, flags: tuple[str, ...], reason: str
) -> None:
    assert_refused(bench, reason, *flags)
