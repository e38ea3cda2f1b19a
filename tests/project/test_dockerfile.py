"""Properties of each image, read from the Dockerfile without an engine."""

import ast
import http.server
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.project.dockerfile import follow_stages, parse_dockerfile

ROOT = Path(__file__).parents[2]
STAGES = parse_dockerfile((ROOT / "Dockerfile").read_text(encoding="utf-8"))
NAMES = [stage.name for stage in STAGES]
TARGETS = ("cpu", "gpu", "openvino")


def values(target: str, keyword: str) -> list[str]:
    """The arguments of `keyword` in `target` and its base stages, in order."""
    return [rest for word, rest in follow_stages(STAGES, target) if word == keyword]


def read_environment(target: str) -> dict[str, str]:
    """Environment variables that the image sets."""
    return dict(pair.split("=", 1) for line in values(target, "ENV") for pair in line.split())


def healthcheck_command() -> list[str]:
    """The command line of the health check, as the engine would run it."""
    line = values("cpu", "HEALTHCHECK")[-1]
    command: list[str] = json.loads(line[line.index("[") :])
    return command


@contextmanager
def answering(status: int) -> Iterator[int]:
    """A server that answers every GET with `status`; yields its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/readyz" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: ARG002
            return

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def run_healthcheck(port: int) -> int:
    """Exit code of the image's health check against a local port."""
    _, *arguments = healthcheck_command()
    environment = {"ML_DECODER_PORT": str(port), "HTTP_PROXY": "http://192.0.2.1:9"}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, check=False
    )
    return done.returncode


def test_cpu_is_the_default_target() -> None:
    assert set(TARGETS) <= set(NAMES)
    assert NAMES[-1] == "cpu"


@pytest.mark.parametrize("target", TARGETS)
def test_image_does_not_run_as_root(target: str) -> None:
    user = values(target, "USER")[-1]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)


@pytest.mark.parametrize("target", TARGETS)
def test_image_user_can_read_bundles_with_any_umask(
    target: str,
) -> None:
    assert "--chmod=755 bundles/ bundles/" in values(target, "COPY")


@pytest.mark.parametrize("target", TARGETS)
def test_image_serves_the_default_bundle_on_every_interface(target: str) -> None:
    environment = read_environment(target)
    assert environment["ML_DECODER_HOST"] == "0.0.0.0"
    assert environment["ML_DECODER_PORT"] == values(target, "EXPOSE")[-1]
    assert environment["ML_DECODER_BUNDLE"] == "/app/bundles/ml-decoder-lite0"
    assert environment["ML_DECODER_DEVICE"] == {"gpu": "cuda"}.get(target, target)
    assert json.loads(values(target, "CMD")[-1]) == ["ml-decoder", "serve"]


@pytest.mark.parametrize("target", TARGETS)
def test_image_disables_telemetry(target: str) -> None:
    assert read_environment(target)["ORT_DISABLE_TELEMETRY"] == "1"


@pytest.mark.parametrize("target", TARGETS)
def test_image_installs_only_what_is_pinned_for_serving(target: str) -> None:
    copied = [line for line in values(target, "COPY") if line.startswith("--from=")]
    assert copied == [f"--from=build-{target} /opt/venv /opt/venv"]
    commands = " && ".join(values(f"build-{target}", "RUN")).split(" && ")
    assert [command for command in commands if " install " in command] == [
        f"pip --python /opt/venv install --no-deps --requirement constraints/serve-{target}.txt",
        "pip --python /opt/venv install --no-deps .",
    ]


def test_no_stage_copies_code_that_needs_torch() -> None:
    copied = {source for stage in STAGES for source in _copied_from_context(stage.name)}
    assert copied == {
        "LICENSE", "README.md", "bundles/", "constraints/serve-cpu.txt",
        "constraints/serve-gpu.txt", "constraints/serve-openvino.txt", "pyproject.toml", "service/",
    }  # fmt: skip


def _copied_from_context(stage: str) -> Iterator[str]:
    for line in values(stage, "COPY"):
        if not line.startswith("--from="):
            yield from (word for word in line.split()[:-1] if not word.startswith("--"))


def test_build_context_has_every_copied_file() -> None:
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    kept = [rule.removeprefix("!") for rule in rules if rule.startswith("!")]
    for stage in STAGES:
        for source in _copied_from_context(stage.name):
            assert any(fnmatch(source.split("/")[0], rule) for rule in kept), source


def test_healthcheck_is_valid_python() -> None:
    program, flag, code = healthcheck_command()
    assert (program, flag) == ("python", "-c")
    ast.parse(code)


@pytest.mark.parametrize(("status", "exit_code"), [(200, 0), (503, 1), (404, 1)])
def test_healthcheck_passes_only_while_ready(status: int, exit_code: int) -> None:
    with answering(status) as port:
        assert run_healthcheck(port) == exit_code


def test_healthcheck_fails_when_nothing_listens() -> None:
    with answering(200) as port:
        pass
    assert run_healthcheck(port) != 0
