"""The pinned packages: complete, exact, with hashes, free of addresses, in step with pyproject."""

import re
import tomllib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = {path.stem: path for path in sorted((ROOT / "constraints").glob("*.txt"))}
PIN = re.compile(
    r"(?P<name>[a-z0-9]+(-[a-z0-9]+)*)==(?P<version>[0-9][0-9a-z.]*)( ; [^;]+?)?"
    r"(?P<hashes>( --hash=sha256:[0-9a-f]{64})*)"
)
EXTRAS = {
    "serve-cpu": "bulk cpu fast get heif otel postgres",
    "serve-gpu": "bulk fast get gpu heif otel postgres",
    "serve-openvino": "bulk fast get heif openvino otel postgres",
    "dev": "bulk cpu dev export fast get heif openvino otel postgres raw ray train",
}
# These packages belong to training or export.
HEAVY = {"torch", "torchvision", "timm", "onnxscript", "safetensors", "triton"}


@cache
def read_pins(name: str) -> dict[str, str]:
    """Package -> version of one constraint file; any other line fails the test."""
    pins: dict[str, str] = {}
    text = re.sub(r" \\\n +", " ", FILES[name].read_text(encoding="utf-8"))
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = PIN.fullmatch(line)
        assert match is not None, f"{name}: {line!r} is not name==version"
        assert match["name"] not in pins, f"{name}: {match['name']} is pinned twice"
        # An editable project, which pip cannot check, is installed with the constraints of `dev`.
        assert bool(match["hashes"]) == (name != "dev"), f"{name}: {match['name']}"
        pins[match["name"]] = match["version"]
    return pins


def read_dependencies(file: str, *extras: str) -> set[str]:
    project = tomllib.loads((ROOT / file).read_text(encoding="utf-8"))["project"]
    asked = list(project["dependencies"])
    for extra in extras:
        asked += project["optional-dependencies"][extra]
    names = {re.split(r"[^A-Za-z0-9._-]", entry)[0].lower() for entry in asked}
    return names - {project["name"]}


def test_each_way_to_install_has_one_file_without_addresses_and_paths() -> None:
    assert set(FILES) == {*EXTRAS, "release"}
    for name, file in FILES.items():
        assert not re.search(r"://|--(?!hash=)|[/@]", file.read_text(encoding="utf-8")), name
        assert read_pins(name)


def test_every_dependency_is_pinned() -> None:
    for name, extras in EXTRAS.items():
        missing = read_dependencies("pyproject.toml", *extras.split()) - set(read_pins(name))
        assert not missing, name
    assert read_dependencies("client/pyproject.toml") <= set(read_pins("dev"))


def test_serving_needs_no_torch_and_agrees_with_development() -> None:
    dev = read_pins("dev")
    for name in FILES.keys() - {"dev"}:
        assert not HEAVY & set(read_pins(name)), name
        others = read_pins(name).items() - dev.items()
        assert not [(package, version) for package, version in others if package in dev], name
