"""The import rules, read from the source of every module.

Imports inside functions and under `TYPE_CHECKING` count. Starting a part as a program
(`ml-decoder export`) does not.
"""

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("ml_decoder_client", "service", "export", "models")

# Packages of the base install and of the service's extras, by import name.
_PACKAGES = """
    PIL cv2 simplejpeg fastapi fastapi_offline httptools httpcore2 numpy onnxruntime
    onnxruntime_ep_openvino opentelemetry pillow_heif prometheus_client pyarrow pydantic
    pydantic_core pydantic_settings multipart pythonjsonlogger ray rich sqlalchemy starlette
    tokenizers typer uvicorn
"""
SERVICE_PACKAGES = set(_PACKAGES.split())
# Rooms from the lowest to the highest: a module imports its own room and lower ones only.
ORDER = {
    "ml_decoder_client": "answers reading calls connection clients",
    "service": """
        errors  bundle  scheduling  settings  images  engine  labels  pipeline
        http.requests  http.responses  http.host  http.security  http.telemetry  http.routes
        http.open_inference  http.app  http.transport  http.server  ray_app  cli
    """,
    "models": """
        commands  config  text  metrics  report  data  heads  backbones  network  towers
        checkpoints
        train  train_open  average  evaluate  evaluate_open
    """,
    "export": """
        graphs  sources  accuracy  int8  variants  calibration  build  evaluate  triton
        run  __main__
    """,
}
ROOMS = [f"{part}.{room}" for part, rooms in ORDER.items() for room in rooms.split()]
# The export decodes and scores with the service's own code: thresholds and accuracy have to be
# measured on the pixels and scores that the service will see.
EXPORT_USES_OF_SERVICE = ("errors", "bundle", "images", "engine", "labels", "pipeline.scoring")


def find_imports(source: str) -> set[str]:
    """Full dotted names that a module imports: `from a import b` gives `a.b`."""
    return {name for node in ast.walk(ast.parse(source)) for name in _imported_by(node)}


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
    return {
        ".".join(path.relative_to(root).with_suffix("").parts): path
        for part in PARTS
        for root in (ROOT / "client" if part == "ml_decoder_client" else ROOT,)
        for path in sorted((root / part).rglob("*.py"))
    }


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
    assert find_imports(source) == {"a.b", "c.d", "c.e", "(relative)", "g", "h", "i", "j"}


@pytest.mark.parametrize("module", _of_part("service"))
def test_service_imports_only_itself_and_the_base_install(module: str) -> None:
    allowed = SERVICE_PACKAGES | {"service"}
    if _is_within(module, "service.cli"):
        allowed = allowed | {"ml_decoder_client"}
    assert not _tops_of(module) - allowed


@pytest.mark.parametrize("module", _of_part("ml_decoder_client"))
def test_client_imports_only_itself_and_its_dependencies(module: str) -> None:
    assert not _tops_of(module) - {"httpx", "ml_decoder_client"}


def _tops_of(module: str) -> set[str]:
    tops = {name.partition(".")[0] for name in _imports_of(module)}
    return tops - set(sys.stdlib_module_names)


@pytest.mark.parametrize("module", _of_part("models"))
def test_models_imports_neither_export_nor_service(module: str) -> None:
    assert not _tops_of(module) & {"export", "service", "tests"}


@pytest.mark.parametrize("module", _of_part("export"))
def test_export_imports_only_the_rooms_of_the_service_that_it_measures_with(module: str) -> None:
    used = {name for name in _imports_of(module) if _is_within(name, "service")}
    allowed = [f"service.{room}" for room in EXPORT_USES_OF_SERVICE]
    assert not {name for name in used if not any(_is_within(name, room) for room in allowed)}


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_no_higher_room(module: str) -> None:
    own = _room_of(module)
    if own is None:  # a package's own `__init__`
        return
    known = [room for name in _imports_of(module) if (room := _room_of(name)) is not None]
    assert not {ROOMS[room] for room in known if room > own}


def test_every_module_is_in_a_room() -> None:
    outside = {name for name in MODULES if _room_of(name) is None}
    assert {name.rpartition(".")[2] for name in outside} <= {"__init__"}


def _room_of(name: str) -> int | None:
    """The position of the room that a dotted name lies in; None outside the rooms."""
    return next((i for i, room in enumerate(ROOMS) if _is_within(name, room)), None)


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
    """The longest module of the part that `name` is or lies in; empty if there is none."""
    return max((m for m in modules if _is_within(name, m)), key=len, default="")
