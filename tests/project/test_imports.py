"""The import rules of the four parts, read off the source of every module.

Imports inside functions and under `TYPE_CHECKING` count: the rules are about who knows
whom, not about when. Starting a part as a program (`ml-decoder export`) is no import.
"""

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("service", "export", "models")

# What the base install and the extras of the service bring, by import name.
SERVICE_PACKAGES = {
    "PIL",
    "cv2",
    "simplejpeg",
    "fastapi",
    "fastapi_offline",
    "httptools",
    "httpcore2",
    "httpx",
    "httpx_retries",
    "numpy",
    "onnxruntime",
    "onnxruntime_ep_openvino",
    "opentelemetry",
    "pillow_heif",
    "prometheus_client",
    "pyarrow",
    "pydantic",
    "pydantic_core",
    "pydantic_settings",
    "multipart",
    "pythonjsonlogger",
    "ray",
    "rich",
    "sqlalchemy",
    "starlette",
    "tokenizers",
    "typer",
    "uvicorn",
}
# Besides the bundle, the export decodes and scores with the service's own code: thresholds
# and accuracy have to be measured on the pixels and scores that the service will see.
EXPORT_USES_OF_SERVICE = (
    "service.bundle.reader",
    "service.bundle.writer",
    "service.labels.calibration",
    "service.bundle.card",
    "service.images.decode",
    "service.pipeline.scoring",
    "service.errors",
    "service.labels.definition",
    "service.labels.encoding",
    "service.labels.text",
    "service.bundle.manifest",
)


def find_imports(source: str) -> set[str]:
    """Full dotted names that a module imports: `from a import b` gives `a.b`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        names.update(_imported_by(node))
    return names


def _imported_by(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=aliases):
            yield from (alias.name for alias in aliases)
        case ast.ImportFrom(module=str(module), names=aliases, level=0):
            yield from (f"{module}.{alias.name}" for alias in aliases)
        case ast.ImportFrom():
            yield "(relative)"
        case ast.Call(
            func=ast.Attribute(attr="import_module") | ast.Name(id="__import__" | "import_module"),
            args=[ast.Constant(value=str(name)), *_],
        ):
            yield name


def _is_within(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def _modules() -> dict[str, Path]:
    paths = (path for part in PARTS for path in sorted((ROOT / part).rglob("*.py")))
    return {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in paths}


MODULES = _modules()


def _of_part(part: str) -> list[str]:
    names = [name for name in MODULES if _is_within(name, part)]
    assert names, f"{part} has no modules"
    return names


def _imports_of(module: str) -> set[str]:
    return find_imports(MODULES[module].read_text(encoding="utf-8"))


def test_find_imports_sees_every_way_to_import() -> None:
    source = """
import a.b
from c import d, e
from . import f
if TYPE_CHECKING:
    import g
def late():
    import h
    importlib.import_module("i")
    __import__("j")
"""
    assert find_imports(source) == {
        "a.b", "c.d", "c.e", "(relative)", "g", "h", "i", "j",
    }  # fmt: skip


@pytest.mark.parametrize("module", _of_part("service"))
def test_service_imports_only_itself_and_the_base_install(module: str) -> None:
    allowed = SERVICE_PACKAGES | set(sys.stdlib_module_names) | {"service"}
    foreign = {name for name in _imports_of(module) if name.partition(".")[0] not in allowed}
    assert not foreign


@pytest.mark.parametrize("module", _of_part("models"))
def test_models_know_neither_export_nor_service(module: str) -> None:
    tops = {name.partition(".")[0] for name in _imports_of(module)}
    assert not tops & {"export", "service", "tests"}


@pytest.mark.parametrize("module", _of_part("export"))
def test_export_knows_of_the_service_only_bundle_decoding_and_scoring(module: str) -> None:
    known = {name for name in _imports_of(module) if _is_within(name, "service")}
    foreign = {n for n in known if not any(_is_within(n, m) for m in EXPORT_USES_OF_SERVICE)}
    assert not foreign


@pytest.mark.parametrize("module", MODULES)
def test_imports_are_absolute(module: str) -> None:
    assert "(relative)" not in _imports_of(module)


@pytest.mark.parametrize("part", PARTS)
def test_imports_point_one_way(part: str) -> None:
    modules = _of_part(part)
    graph = {m: {_owner(name, modules) for name in _imports_of(m)} - {m, ""} for m in modules}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


def _owner(name: str, modules: list[str]) -> str:
    """The longest module of the part that `name` is or lies in; empty where there is none."""
    return max((m for m in modules if _is_within(name, m)), key=len, default="")
