"""The Compose files, checked against the specification by a parser of its own."""

import re
from pathlib import Path
from typing import Any

import pytest
from compose_spec import PyCompose

from tests.project.dockerfile import parse_dockerfile

ROOT = Path(__file__).parents[2]
CPU_FILE = ROOT / "docker-compose.yml"
GPU_FILE = ROOT / "deploy" / "docker-compose.gpu.yml"


def read_compose(path: Path) -> dict[str, Any]:
    """The file as plain data; raises `ValueError` where it breaks the specification."""
    content: dict[str, Any] = PyCompose.from_yaml(path.read_text(encoding="utf-8")).to_dict()
    return content


def read_service(path: Path, name: str = "ml-decoder") -> dict[str, Any]:
    """One service of the file."""
    return dict(read_compose(path)["services"][name])


def test_misspelt_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "compose.yml"
    path.write_text(CPU_FILE.read_text(encoding="utf-8").replace("read_only", "readonly"))
    with pytest.raises(ValueError, match="readonly"):
        read_compose(path)


def test_default_runs_on_the_cpu() -> None:
    service = read_service(CPU_FILE)
    assert service["build"]["target"] == "cpu"
    assert service["ports"] == ["8000:8000"]
    assert "deploy" not in service


def test_state_outlives_the_container() -> None:
    content = read_compose(CPU_FILE)
    (mount,) = read_service(CPU_FILE)["volumes"]
    volume, _, folder = mount.partition(":")
    assert volume in content["volumes"]
    assert folder in (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_nothing_but_the_service_starts_without_a_profile() -> None:
    services = read_compose(CPU_FILE)["services"]
    assert [name for name, service in services.items() if "profiles" not in service] == [
        "ml-decoder"
    ]


@pytest.mark.parametrize("name", ["prometheus", "grafana"])
def test_monitoring_is_for_this_machine_alone_and_reads_what_is_there(name: str) -> None:
    service = read_service(CPU_FILE, name)
    assert service["profiles"] == ["monitoring"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert service["cap_drop"] == ["ALL"]
    assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+", service["image"])
    for mount in service["volumes"]:
        source = mount.split(":")[0]
        if source.startswith("./"):
            assert (ROOT / source).is_dir()
            assert mount.endswith(":ro")


def test_container_cannot_change_itself_or_gain_privileges() -> None:
    service = read_service(CPU_FILE)
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_override_changes_the_target_and_asks_for_a_gpu() -> None:
    assert read_compose(GPU_FILE)["services"].keys() == {"ml-decoder"}
    service = read_service(GPU_FILE)
    assert service["build"] == {"target": "gpu"}
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia"
    assert device["capabilities"] == ["gpu"]


@pytest.mark.parametrize("path", [CPU_FILE, GPU_FILE], ids=lambda path: path.name)
def test_target_is_a_stage_of_the_dockerfile(path: Path) -> None:
    stages = parse_dockerfile((ROOT / "Dockerfile").read_text(encoding="utf-8"))
    assert read_service(path)["build"]["target"] in {stage.name for stage in stages}


def test_command_in_the_comment_names_the_override() -> None:
    named = re.findall(r"-f (\S+)", CPU_FILE.read_text(encoding="utf-8"))
    assert [ROOT / name for name in named] == [CPU_FILE, GPU_FILE]
