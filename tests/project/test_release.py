"""Files of a release match their schemas; versions, hints and workflow match the code."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.bundle.manifest import SCHEMA_VERSION
from tests.project.dockerfile import parse_dockerfile

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
ACTIONS = sorted((ROOT / ".github/actions").glob("*/action.yml"))
SCHEMAS = {
    **dict.fromkeys((str(path.relative_to(ROOT)) for path in WORKFLOWS), "github-workflows"),
    **dict.fromkeys((str(path.relative_to(ROOT)) for path in ACTIONS), "github-actions"),
    ".github/ISSUE_TEMPLATE/bug.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/feature.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "github-issue-config",
    ".github/dependabot.yml": "dependabot",
    "CITATION.cff": "citation-file-format",
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
JOBS: dict[str, dict[str, Any]] = {
    path.stem: yaml.safe_load(path.read_text())["jobs"] for path in WORKFLOWS
}
STEPS: list[dict[str, Any]] = [
    step for jobs in JOBS.values() for job in jobs.values() for step in job.get("steps", [])
]
for action in ACTIONS:
    STEPS += yaml.safe_load(action.read_text())["runs"]["steps"]


@pytest.mark.parametrize("file", SCHEMAS)
def test_file_matches_its_schema(file: str) -> None:
    checker = Path(sys.executable).with_name("check-jsonschema")
    # The package has the schemas: nothing is fetched.
    command = [str(checker), "--builtin-schema", f"vendor.{SCHEMAS[file]}", str(ROOT / file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_versions_agree() -> None:
    client = tomllib.loads((ROOT / "client/pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert client["version"] == citation["version"] == PROJECT["version"]
    releases = re.findall(r"^## \[(\d\S*)\] - (\S+)$", CHANGELOG, re.MULTILINE)
    assert releases[0] == (citation["version"], str(citation["date-released"]))


def test_stability_page_names_the_schemas_that_are_read() -> None:
    page = (ROOT / "docs/stability.md").read_text(encoding="utf-8")
    assert f"`schema_version` 1 to {SCHEMA_VERSION} today" in page


def test_actions_are_pinned_by_commit_and_images_by_digest() -> None:
    actions = [step["uses"] for step in STEPS if not step.get("uses", "./").startswith("./")]
    assert actions
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action) for action in actions), actions
    stages = parse_dockerfile((ROOT / "Dockerfile").read_text())
    images = {stage.base for stage in stages} - {stage.name for stage in stages}
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    images |= {each["image"] for each in compose["services"].values()}
    others = {image for image in images if not image.startswith("ml-decoder-serve:")}
    assert len(others) == 5
    assert all(re.fullmatch(r"\S+:\S+@sha256:[0-9a-f]{64}", image) for image in others), others


def test_workflows_install_packages_with_hashes_only() -> None:
    runs = "\n".join(step.get("run", "") for step in STEPS)
    installs = re.findall(r"pip install (.*)", runs)
    assert installs
    for arguments in installs:
        hashed = re.fullmatch(r"--require-hashes --no-deps --requirement (\S+)", arguments)
        assert hashed or arguments == "--no-deps dist/*.whl", arguments
        assert not hashed or (ROOT / hashed[1]).exists()
    assert "--no-isolation" in runs  # else `build` installs the newest setuptools


def test_only_jobs_that_publish_sign_or_report_may_write() -> None:
    writing = {
        (workflow, name)
        for workflow, jobs in JOBS.items()
        for name, job in jobs.items()
        if "write" in job.get("permissions", {}).values()
    }
    assert writing == {
        *(("build", name) for name in ("packages", "images", "index")),
        *(("release", name) for name in ("build", "pypi", "files")),
        ("codeql", "analyze"),
        ("scorecard", "scorecard"),
    }


def test_images_are_built_in_changes_and_releases_alike() -> None:
    changes, releases = (JOBS[name]["images"]["strategy"]["matrix"] for name in ("ci", "build"))
    built = {(target, runner) for target in changes["target"] for runner in changes["runner"]}
    built |= {(each["target"], each["runner"]) for each in changes["include"]}
    assert built == {(each["target"], each["runner"]) for each in releases["include"]}
    joined = {
        (each["target"], platform)
        for each in JOBS["build"]["index"]["strategy"]["matrix"]["include"]
        for platform in each["platforms"].split()
    }
    assert joined == {(each["target"], each["platform"]) for each in releases["include"]}


def test_hints_install_existing_extras_from_the_checkout() -> None:
    hints: list[str] = []
    for folder in ("service", "models", "export"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert f"{PROJECT['name']}[" not in text, path
            hints += re.findall(r"'\.\[([^]]+)\]'", text)
    hints = [hint for hint in hints if hint != "{extra}"]
    assert hints
    assert set(hints) <= PROJECT["optional-dependencies"].keys()
