"""The import rules, read from the source of every module.

Imports inside functions and under `TYPE_CHECKING` count. Starting a part as a program
(`ml-decoder export`) does not.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("ml_decoder_client", "service", "export", "models")

# Packages of the base install and of the service's extras, by import name.
_PACKAGES = """
    PIL cv2 simplejpeg fastapi fastapi_offline httptools httpcore2 lxml numpy onnxruntime
    onnxruntime_ep_openvino opentelemetry pillow_heif prometheus_client pyarrow pydantic
    pydantic_core pydantic_settings pynvml multipart pythonjsonlogger ray rawpy rich sqlalchemy
    starlette tokenizers typer uvicorn
"""
SERVICE_PACKAGES = set(_PACKAGES.split())
# Rooms from the lowest to the highest: a module imports its own room and lower ones only.
ORDER = {
    "ml_decoder_client": "answers reading calls connection clients",
    "service": """
        errors  logs  fields  files  question  bundle  calibration  stages  caller  scheduling
        settings  engine  images  archive  labels  pipeline
        http.requests  http.responses  http.security  http.telemetry  http.routes
        http.dialects  http.app  process  ray_app  cli
    """,
    "models": """
        commands  config  meta  text  timm_model  metrics  data  heads  towers  backbones  network
        checkpoints
        train  train_open  average  evaluate
    """,
    "export": """
        graphs  sources  accuracy  int8  variants  calibration  build
        __main__  towers
    """,
}
ROOMS = [f"{part}.{room}" for part, rooms in ORDER.items() for room in rooms.split()]
# The export's large packages, without which bundles are calibrated, and made of ready graphs.
TORCH = ("torch", "timm", "transformers", "safetensors", "torchvision", "torchmetrics")
WITHOUT_TORCH = (
    "export.calibration.bundle",
    *(f"models.checkpoints.{name}" for name in ("hub", "tokenizers", "processors")),
)
# The export decodes and scores with the service's own code: thresholds and accuracy have to be
# measured on the pixels and scores that the service will see.
EXPORT_USES_OF_SERVICE = (
    *("errors", "fields", "bundle", "calibration", "images", "engine", "labels"),
    "pipeline.scoring",
)


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


IMPORTS = {
    ".".join(path.relative_to(root).with_suffix("").parts): find_imports(
        path.read_text(encoding="utf-8")
    )
    for part in PARTS
    for root in (ROOT / "client" if part == "ml_decoder_client" else ROOT,)
    for path in sorted((root / part).rglob("*.py"))
}


def _of_part(part: str) -> list[str]:
    names = [name for name in IMPORTS if _is_within(name, part)]
    assert names, f"{part} has no modules"
    return names


def _tops_of(module: str) -> set[str]:
    tops = {name.partition(".")[0] for name in IMPORTS[module]}
    return tops - set(sys.stdlib_module_names)


def _room_of(name: str) -> int | None:
    """The position of the room that a dotted name lies in; None outside the rooms."""
    return next((i for i, room in enumerate(ROOMS) if _is_within(name, room)), None)


def _list_wrong(imports: Iterable[tuple[str, set[str]]]) -> list[str]:
    return [f"{module}: {', '.join(sorted(names))}" for module, names in imports if names]


def test_parts_import_only_what_their_users_install() -> None:
    def allow(module: str) -> set[str]:
        if _is_within(module, "service.cli"):
            return SERVICE_PACKAGES | {"service", "ml_decoder_client"}
        if _is_within(module, "service"):
            return SERVICE_PACKAGES | {"service"}
        return {"httpx2", "ml_decoder_client"}

    modules = [*_of_part("service"), *_of_part("ml_decoder_client")]
    assert not _list_wrong((module, _tops_of(module) - allow(module)) for module in modules)
    others = {"export", "service", "tests"}
    assert not _list_wrong((module, _tops_of(module) & others) for module in _of_part("models"))


def test_export_imports_only_the_rooms_of_the_service_that_it_measures_with() -> None:
    allowed = [f"service.{room}" for room in EXPORT_USES_OF_SERVICE]

    def list_others(module: str) -> set[str]:
        used = {name for name in IMPORTS[module] if _is_within(name, "service")}
        return {name for name in used if not any(_is_within(name, room) for room in allowed)}

    assert not _list_wrong((module, list_others(module)) for module in _of_part("export"))


def test_commands_import_nothing_of_http() -> None:
    def list_http(module: str) -> set[str]:
        return {name for name in IMPORTS[module] if _is_within(name, "service.http")}

    assert not _list_wrong((module, list_http(module)) for module in _of_part("service.cli"))


def test_modules_import_no_higher_room() -> None:
    def list_higher(module: str) -> set[str]:
        own = _room_of(module)
        if own is None:  # a package's own `__init__`
            assert module.endswith("__init__"), f"{module} is in no room"
            return set()
        known = [room for name in IMPORTS[module] if (room := _room_of(name)) is not None]
        return {ROOMS[room] for room in known if room > own}

    assert not _list_wrong((module, list_higher(module)) for module in IMPORTS)


def test_modules_are_imported_without_torch() -> None:
    names = ", ".join(WITHOUT_TORCH)
    script = f"import sys; sys.modules.update(dict.fromkeys({TORCH})); import {names}"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_imports_are_absolute_and_point_one_way() -> None:
    assert not [module for module, names in IMPORTS.items() if "(relative)" in names]
    for part in PARTS:
        modules = _of_part(part)
        graph = {m: {_owner(name, modules) for name in IMPORTS[m]} - {m, ""} for m in modules}
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


def _owner(name: str, modules: list[str]) -> str:
    """The longest module of the part that `name` is or lies in; empty if there is none."""
    return max((m for m in modules if _is_within(name, m)), key=len, default="")
