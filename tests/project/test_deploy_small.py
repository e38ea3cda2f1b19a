"""The example of settings and the commands of docs/deploy-small.md match settings and images."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from service.settings import Settings, check_variables
from tests.project.snippets import read_commands, read_snippets
from tests.project.test_compose import read_compose

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "deploy-small.md"
LINES = (ROOT / "ml-decoder.env.example").read_text(encoding="utf-8").splitlines()
EXAMPLES = dict(
    line.removeprefix("#").split("=", 1) for line in LINES if re.match(r"#?[A-Z_]+=", line)
)
PREFIX = "ML_DECODER_"
GIVEN = {
    name.removeprefix(PREFIX).lower(): value
    for name, value in EXAMPLES.items()
    if name.startswith(PREFIX)
}
# The images set where to listen; the others seldom change.
LEFT_OUT = {"host", "port", "screen", "label_poll_seconds", "candidate_cache_size", "max_wait_ms"}


def read_docker_run(name: str) -> list[str]:
    """Returns the arguments of the page's `docker run` of this container."""
    blocks = [read_commands(each.code) for each in read_snippets(PAGE, "page")]
    commands = "\n".join(blocks).replace("\\\n", " ").splitlines()
    (words,) = [
        words
        for command in commands
        if (words := shlex.split(command))[:2] == ["docker", "run"] and name in words
    ]
    return words


def test_example_file_has_every_setting_but_those_left_out() -> None:
    assert GIVEN.keys() == Settings.model_fields.keys() - LEFT_OUT


def test_example_values_are_valid_and_the_defaults_where_there_are_some() -> None:
    read = Settings(**GIVEN)
    defaults = Settings.model_construct()
    for name in GIVEN:
        default = Settings.model_fields[name].default
        if default is not None and name != "bundle":
            assert getattr(read, name) == getattr(defaults, name), name


def test_copied_example_changes_nothing_until_a_line_is_uncommented(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert all(line.startswith("#") for line in LINES if line)
    # Docker takes everything after `=` as the value.
    assert not [value for value in EXAMPLES.values() if " " in value]
    check_variables(EXAMPLES)
    assert caplog.messages == []


def test_docker_run_starts_the_container_of_compose() -> None:
    compose = read_compose((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    service = compose["services"]["ml-decoder"]
    words = read_docker_run("ml-decoder")
    flags = list(pairwise(words))
    volume = service["volumes"][0].partition(":")
    expected = [
        ("--env-file", service["env_file"][0]["path"]),
        ("--publish", service["ports"][0]),
        ("--volume", f"{compose['name']}_{''.join(volume)}"),  # as Compose names it
        ("--tmpfs", service["tmpfs"][0]),
        ("--cap-drop", service["cap_drop"][0]),
        ("--security-opt", service["security_opt"][0]),
        ("--memory", service["mem_limit"].removesuffix("b")),
        ("--pids-limit", f"{service['pids_limit']:g}"),
        ("--stop-timeout", service["stop_grace_period"].removesuffix("s")),
        ("--restart", service["restart"]),
    ]
    assert set(expected) <= set(flags)
    assert service["read_only"] is True
    assert "--read-only" in words
    assert words[-1] == service["image"]


def test_nginx_container_mounts_the_files_that_the_configuration_names() -> None:
    words = read_docker_run("ml-decoder-proxy")
    assert {"--memory", "--pids-limit"} <= set(words)
    mounts = [then for word, then in pairwise(words) if word == "--volume"]
    sources = {mount.split(":")[1]: mount.split(":")[0] for mount in mounts}
    site = (ROOT / "deploy" / "nginx" / "tls.conf").read_text(encoding="utf-8")
    for file in re.findall(r"ssl_certificate(?:_key)? (\S+);", site):
        assert str(Path(file).parent) in sources
    assert sources["/etc/nginx/conf.d/default.conf"] == "$PWD/deploy/nginx/tls.conf"
