"""The constraint files: complete, exact, free of addresses, and in step with pyproject."""

import re
import tomllib
from pathlib import Path

import pytest

from constraints.lock import LockError, pin_packages

ROOT = Path(__file__).parents[2]
FILES = {path.stem: path for path in sorted((ROOT / "constraints").glob("*.txt"))}
PIN = re.compile(r"(?P<name>[a-z0-9]+(-[a-z0-9]+)*)==(?P<version>[0-9][0-9a-z.]*)")
# These packages belong to training or export.
HEAVY = {"torch", "torchvision", "timm", "onnx", "onnxscript", "safetensors", "triton"}


def read_pins(name: str) -> dict[str, str]:
    """Package -> version of one constraint file; any other line fails the test."""
    pins: dict[str, str] = {}
    for line in FILES[name].read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        match = PIN.fullmatch(line)
        assert match is not None, f"{name}: {line!r} is not name==version"
        assert match["name"] not in pins, f"{name}: {match['name']} is pinned twice"
        pins[match["name"]] = match["version"]
    return pins


def read_dependencies(*extras: str) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = list(project["dependencies"])
    for extra in extras:
        asked += project["optional-dependencies"][extra]
    names = {re.split(r"[^A-Za-z0-9._-]", entry)[0].lower() for entry in asked}
    return names - {project["name"]}


def _entry(name: str, version: str) -> dict[str, dict[str, str]]:
    return {"metadata": {"name": name, "version": version}}


def test_each_way_to_install_has_one_file() -> None:
    assert set(FILES) == {"dev", "serve-cpu", "serve-gpu", "serve-openvino"}


@pytest.mark.parametrize("name", FILES)
def test_constraints_name_no_address_and_no_path(name: str) -> None:
    text = FILES[name].read_text(encoding="utf-8")
    assert not re.search(r"://|--|[/\\@]", text)
    assert read_pins(name)


@pytest.mark.parametrize(
    ("name", "extras"),
    [
        ("serve-cpu", "cpu fast otel postgres"),
        ("serve-gpu", "fast gpu otel postgres"),
        ("serve-openvino", "fast openvino otel postgres"),
        ("dev", "bulk cpu dev export fast openvino otel postgres ray train"),
    ],
)
def test_every_dependency_is_pinned(name: str, extras: str) -> None:
    assert read_dependencies(*extras.split()) <= set(read_pins(name))


def test_every_dependency_of_the_client_is_pinned_for_development() -> None:
    project = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text("utf-8"))["project"]
    names = {entry.partition(">=")[0] for entry in project["dependencies"]}
    assert names <= set(read_pins("dev"))


@pytest.mark.parametrize("name", ["serve-cpu", "serve-gpu", "serve-openvino"])
def test_serving_needs_no_torch_and_agrees_with_development(name: str) -> None:
    dev, pins = read_pins("dev"), read_pins(name)
    assert not HEAVY & set(pins)
    shared = dev.keys() & pins.keys()
    assert {name: pins[name] for name in shared} == {name: dev[name] for name in shared}


def test_pins_are_sorted_normalised_and_leave_the_project_out() -> None:
    versions = {"typing_extensions": "4", "Jinja2": "3.1"}
    versions |= {"ml-decoder-serve": "0", "ml_decoder_client": "0"}
    packages = [_entry(name, version) for name, version in versions.items()]
    assert list(pin_packages(packages)) == ["jinja2==3.1", "typing-extensions==4"]


def test_local_build_is_not_pinned() -> None:
    with pytest.raises(LockError, match="torch"):
        list(pin_packages([_entry("torch", "2.0+cpu")]))
