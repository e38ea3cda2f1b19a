"""`ml-decoder bench` against a fake service."""

import json
from pathlib import Path

import pytest

from service.cli import commands as cli
from tests.service.cli.conftest import Run, assert_refused, run_without_onnx_runtime
from tests.support.fake_service import run_fake
from tests.support.photos import make_photo


def test_bench_needs_no_onnx_runtime(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(make_photo())
    with run_fake() as (_, url):
        command = ("bench", "--url", url, "--seconds", "0.1", "--json", str(tmp_path))
        found = run_without_onnx_runtime(*command)
    assert (found.returncode, found.stderr) == (0, "")
    assert json.loads(found.stdout)["answers"] > 0


def test_bench_counts_answers_and_errors(run: Run) -> None:
    with run_fake() as (service, url):
        code, out, err = run("bench", "--url", url, "--clients", 2, "--seconds", 0.3, "--json")
        figures = json.loads(out)
        assert (code, err, figures["errors"]) == (0, "", {})
        assert figures["answers"] == len(service.requests) - 1, "the first one is not counted"
        assert 0 < figures["p50_ms"] <= figures["p95_ms"] <= figures["p99_ms"]

        service.answers = [(200, {}), (429, {"Retry-After": "9"})]
        _, out, _ = run("bench", "--url", url, "--clients", 1, "--seconds", 0.1, "--json")
        figures = json.loads(out)
        assert figures["answers"] == 0
        assert figures["errors"]["429"] > 0, "refusals are counted, not tried again"

        service.answers = [(200, {}), (200, {"Content-Encoding": "gzip"})]
        _, out, _ = run("bench", "--url", url, "--clients", 1, "--seconds", 0.1, "--json")
        assert list(json.loads(out)["errors"]) == ["unreadable"]


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
        (("--url", "http://localhost:abc"), "invalid url 'http://localhost:abc'"),
        (("--url", "http://localhost:65616"), "invalid url 'http://localhost:65616'"),
        (("--api-key", "clé"), "api_key must be printable ASCII"),
        (("--label-set", "\udcff"), r"invalid label set name '\udcff'"),
    ],
)
def test_bench_writes_one_line_for_an_invalid_argument(
    run: Run, flags: tuple[str, str], reason: str
) -> None:
    with run_fake() as (_, url):
        assert_refused(run, reason, "bench", "--url", url, *flags)
        assert run("bench", "--url", url, "--seconds", 0.1)[0] == 0
