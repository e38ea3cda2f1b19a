"""Plans of processes: by cores, quota, memory, device and GPUs."""

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest

from service.bundle.manifest import MANIFEST_FILE
from service.engine import devices
from service.errors import StartError
from service.process import plan as planning
from service.process.plan import Plan, plan_workers
from service.scheduling import cpu
from service.settings import MIB, Settings

GIB = 1024 * MIB
MACHINE = {"system": "linux", "cores": 16, "quota": math.inf, "memory": 64 * GIB}
MACHINE |= {"cuda": False, "nvml": True, "gpus": ""}
CARD = {"cuda": True, "gpus": "a"}
CARDS = {"cuda": True, "gpus": "ab"}
UNKNOWN = {"cuda": True, "nvml": False}


def make_plan(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], **settings: Any) -> Plan:
    """Plans for a changed `MACHINE`; its GPUs have names of one letter."""
    machine = MACHINE | changes
    cores = set(range(machine["cores"]))
    providers = ["CUDAExecutionProvider"] * machine["cuda"] + ["CPUExecutionProvider"]
    monkeypatch.setattr(sys, "platform", machine["system"])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores, raising=False)
    monkeypatch.setattr(cpu, "read_cpu_quota", lambda: machine["quota"])
    monkeypatch.setattr(planning, "read_memory_limit", lambda: machine["memory"])
    monkeypatch.setattr(ort, "get_available_providers", lambda: providers)
    monkeypatch.setattr(planning, "list_gpus", lambda: [*machine["gpus"]])
    monkeypatch.setattr(planning, "find_spec", lambda _: machine["nvml"] or None)
    return plan_workers(Settings(**settings))


@pytest.mark.parametrize(
    ("machine", "settings", "wanted"),  # workers, pinned; threads and GPU of the last
    [
        ({"cores": 2}, {}, (1, True, 2, 2, "")),
        ({"cores": 6}, {}, (2, True, 3, 3, "")),
        ({}, {}, (5, True, 3, 3, "")),
        ({}, {"device": "openvino", "intra_op_threads": 2}, (5, True, 2, 3, "")),
        ({"cores": 2}, {"workers": 3, "decode_threads": 2}, (3, False, 1, 2, "")),
        ({"quota": 6.5}, {}, (2, False, 3, 3, "")),
        ({"quota": 0.5}, {}, (1, False, 1, 1, "")),
        ({"memory": 4 * GIB}, {}, (2, True, 8, 8, "")),
        ({"memory": 4 * GIB}, {"workers": 4}, (4, True, 4, 4, "")),
        ({"memory": GIB // 2}, {}, (1, True, 16, 16, "")),
        ({"system": "darwin"}, {}, (1, True, 16, 16, "")),
        ({}, {"bundle": "/no/bundle"}, (5, True, 3, 3, "")),
        (CARD, {}, (8, False, 2, 4, "a")),
        (CARD, {"device": "cpu"}, (5, True, 3, 3, "")),
        (CARD, {"workers": 1}, (1, False, 16, 8, "a")),
        (CARD | {"cores": 3}, {}, (1, False, 3, 3, "a")),
        (CARD | {"memory": 4 * GIB}, {}, (2, False, 8, 8, "a")),
        (CARDS, {"workers": 3}, (3, False, 5, 5, "a")),
        (CARDS | {"cores": 2}, {}, (2, False, 1, 2, "b")),
        ({"cuda": True}, {}, (5, True, 3, 3, "")),
        ({"cuda": True}, {"device": "cuda"}, (1, False, 16, 8, "")),
        (UNKNOWN, {}, (1, False, 16, 8, "")),
        (UNKNOWN, {"device": "tensorrt", "workers": 2}, (2, False, 8, 8, "")),
    ],
)
def test_plan(
    monkeypatch: pytest.MonkeyPatch, machine: dict[str, Any], settings: dict[str, Any], wanted: Any
) -> None:
    plan = make_plan(monkeypatch, machine, **settings)
    pinned = all(share.numbers for share in plan.shares)
    adapted = plan.adapt_settings(plan.workers, Settings(**settings))
    threads = adapted.intra_op_threads, adapted.decode_threads
    gpu = plan.find_gpu(plan.workers) or ""
    assert (plan.workers, pinned, *threads, gpu) == wanted


def test_limits_of_the_service_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(monkeypatch, {}, workers=4)
    for pixels, held, body, wanted in (
        (64_000_000, 1024, 20, (16_000_000, 256)),
        (3, 900, 600, (0, 600)),
        (3, 900, 1000, (0, 900)),  # invalid
    ):
        limits = {"max_held_bytes": held, "max_body_bytes": body, "max_decoding_pixels": pixels}
        adapted = plan.adapt_settings(4, Settings(**limits))
        assert (adapted.max_decoding_pixels, adapted.max_held_bytes) == wanted


@pytest.mark.parametrize(("precision", "workers"), [("auto", 3), ("int8", 3), ("fp32", 2)])
def test_memory_of_a_worker_follows_from_the_graphs_of_its_precision(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, precision: str, workers: int
) -> None:
    manifest = json.loads((Settings().bundle / MANIFEST_FILE).read_text())
    for name, mebibytes in (("encoder.fp32.onnx", 400), ("encoder.int8.onnx", 100)):
        manifest["files"][name]["bytes"] = mebibytes * MIB
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(manifest))
    monkeypatch.setattr(devices, "multiplies_int8", lambda: True)
    settings = {"bundle": tmp_path, "precision": precision}
    assert make_plan(monkeypatch, {"memory": 8 * GIB}, **settings).workers == workers


def test_several_workers_need_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StartError, match=r"^workers must be 1 on .* it is 2$"):
        make_plan(monkeypatch, {"system": "darwin"}, workers=2)
