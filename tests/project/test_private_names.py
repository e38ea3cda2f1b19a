"""Private names of other packages that the code uses: a new version may lack them.

Those of uvicorn are in `tests/service/process/test_protocol.py`.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import onnxruntime
import torch
from onnxruntime.capi import onnxruntime_pybind11_state

ROOT = Path(__file__).parents[2]
# Private by their spelling only.
PUBLIC = {"os._exit", "_replace"}
PRIVATE = {
    "export/graphs/optimise.py": {"onnxruntime.capi.onnxruntime_pybind11_state.InvalidProtobuf"},
    "models/heads/screen.py": {"torch._check"},
    "service/engine/sessions.py": {"session._model_bytes"},  # else a graph stays in memory twice
}


def _find_private(tree: ast.Module, own: set[str]) -> Iterator[str]:
    modules = {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in names if "._" in name or ".capi" in name)
        elif isinstance(node, ast.Attribute) and re.fullmatch(r"_\w*[^_]", node.attr):
            name, owner = ast.unparse(node), ast.unparse(node.value)
            if (owner in modules or node.attr not in own) and not PUBLIC & {name, node.attr}:
                yield name


def _list_own_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in {"self", "cls"}:
            yield node.attr


def test_private_names_of_others_are_listed_and_exist() -> None:
    parts = ("service", "export", "models", "client/ml_decoder_client")
    paths = [path for part in parts for path in sorted((ROOT / part).rglob("*.py"))]
    trees = {path: ast.parse(path.read_text("utf-8")) for path in paths}
    own = {name for tree in trees.values() for name in _list_own_names(tree)}
    found = {
        str(path.relative_to(ROOT)): names
        for path, tree in trees.items()
        if path.name != "protocol.py" and (names := set(_find_private(tree, own)))
    }
    assert found == PRIVATE
    assert issubclass(onnxruntime_pybind11_state.InvalidProtobuf, Exception)
    assert callable(torch._check)
    session = onnxruntime.InferenceSession(ROOT / "bundles/ml-decoder-lite0/open_head.fp32.onnx")
    assert hasattr(session, "_model_bytes")
