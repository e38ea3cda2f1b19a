"""Properties of each image, read from the Dockerfile without an engine."""

import json
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.project.dockerfile import follow_stages, parse_dockerfile
from tests.support.fake_service import run_fake

ROOT = Path(__file__).parents[2]
STAGES = parse_dockerfile((ROOT / "Dockerfile").read_text(encoding="utf-8"))
NAMES = [stage.name for stage in STAGES]
TARGETS = ("cpu", "gpu", "openvino")


def values(target: str, keyword: str) -> list[str]:
    """The arguments of `keyword` in `target` and its base stages, in order."""
    return [rest for word, rest in follow_stages(STAGES, target) if word == keyword]


def read_environment(target: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for line in values(target, "ENV") for pair in line.split())


def run_healthcheck(port: int) -> int:
    line = values("cpu", "HEALTHCHECK")[-1]
    program, *arguments = json.loads(line[line.index("[") :])
    assert program == "python"
    environment = {"ML_DECODER_PORT": str(port), "HTTP_PROXY": "http://192.0.2.1:9"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True).returncode


@pytest.mark.parametrize("target", TARGETS)
def test_image_user_is_not_root_reads_bundles_with_any_umask_and_writes_the_label_store(
    target: str,
) -> None:
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", values(target, "USER")[-1])
    assert "--chmod=755 bundles/ bundles/" in values(target, "COPY")
    environment = read_environment(target)
    folder = str(Path(environment["ML_DECODER_LABEL_STORE"]).parent)
    assert environment["HOME"] == folder
    steps = " ".join(values(target, "RUN")).split(" && ")
    (made,) = (step for step in steps if step.endswith(folder))
    assert "--group=root --mode=775" in made  # OpenShift's users are in the group root


def test_build_context_has_every_copied_file_and_no_code_that_needs_torch() -> None:
    lines = [line for stage in NAMES for line in values(stage, "COPY")]
    sources = [line.split()[:-1] for line in lines if not line.startswith("--from=")]
    copied = {word for words in sources for word in words if not word.startswith("--")}
    assert copied == {
        "LICENSE", "README.md", "bundles/", "constraints/serve-cpu.txt",
        "constraints/serve-gpu.txt", "constraints/serve-openvino.txt", "pyproject.toml", "service/",
    }  # fmt: skip
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    kept = [rule.removeprefix("!") for rule in rules if rule.startswith("!")]
    for source in copied:
        assert any(fnmatch(source.split("/")[0], rule) for rule in kept), source


@pytest.mark.parametrize("target", TARGETS)
def test_image_has_nothing_that_only_get_needs(target: str) -> None:
    removed = set(" ".join(values(f"build-{target}", "RUN")).split())
    assert {"filelock", "hf-xet", "huggingface-hub", "ml-dtypes", "onnx"} <= removed


@pytest.mark.parametrize(("status", "exit_code"), [(200, 0), (503, 1), (404, 1)])
def test_healthcheck_passes_only_while_ready(status: int, exit_code: int) -> None:
    with run_fake() as (service, _):
        service.answers = [(status, {})]
        assert run_healthcheck(service.port) == exit_code
    assert [request[:2] for request in service.requests] == [("GET", "/readyz")]
    assert run_healthcheck(service.port) != 0, "nothing listens"
