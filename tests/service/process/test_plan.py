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
from service.scheduling.gpus import Gpu
from service.settings import MIB, Settings

GIB = 1024 * MIB
MACHINE = {"cores": 16, "quota": math.inf, "memory": 64 * GIB, "cuda": False, "gpus": 0}
CARD = {"cuda": True, "gpus": 1}
TWO_CARDS = {"cuda": True, "gpus": 2}


@pytest.fixture(autouse=True)
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")


def make_plan(monkeypatch: pytest.MonkeyPatch, machine: dict[str, Any], **settings: Any) -> Plan:
    """Plans for `MACHINE` with changes; the GPUs are called a, b and so on."""
    machine = MACHINE | machine
    cores = set(range(machine["cores"]))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores, raising=False)
    monkeypatch.setattr(cpu, "read_cpu_quota", lambda: machine["quota"])
    monkeypatch.setattr(planning, "read_memory_limit", lambda: machine["memory"])
    providers = ["CUDAExecutionProvider"] * machine["cuda"] + ["CPUExecutionProvider"]
    monkeypatch.setattr(ort, "get_available_providers", lambda: providers)
    nvml = machine.get("nvml", True)
    monkeypatch.setattr(planning, "list_gpus", lambda: [Gpu(c) for c in "abcd"[: machine["gpus"]]])
    monkeypatch.setattr(planning, "find_spec", lambda _: nvml or None)
    return plan_workers(Settings(**settings))


@pytest.mark.parametrize(
    ("machine", "settings", "wanted"),  # workers, engines, cores of each, pinned, GPUs
    [
        ({"cores": 1}, {}, (1, 0, [1], True, "")),
        ({"cores": 2}, {}, (1, 0, [2], True, "")),
        ({"cores": 6}, {}, (2, 0, [3, 3], True, "")),
        ({}, {}, (5, 0, [4, 3, 3, 3, 3], True, "")),
        ({}, {"device": "openvino"}, (5, 0, [4, 3, 3, 3, 3], True, "")),
        ({"cores": 4}, {"workers": 2}, (2, 0, [2, 2], True, "")),
        ({"cores": 2}, {"workers": 3}, (3, 0, [1, 1, 1], False, "")),
        ({"quota": 6.5}, {}, (2, 0, [3, 3], False, "")),
        ({"quota": 0.5}, {}, (1, 0, [1], False, "")),
        ({"memory": 4 * GIB}, {}, (2, 0, [8, 8], True, "")),
        ({"memory": 4 * GIB}, {"workers": 4}, (4, 0, [4] * 4, True, "")),
        ({"memory": GIB // 2}, {}, (1, 0, [16], True, "")),
        ({"cores": 8}, {"shared_engine": True}, (2, 1, [4, 4], False, "")),
        ({}, {"bundle": "/no/bundle"}, (5, 0, [4, 3, 3, 3, 3], True, "")),
        # The model may be on a GPU.
        (CARD, {}, (8, 0, [2] * 8, False, "a")),
        (CARD, {"device": "cpu"}, (5, 0, [4, 3, 3, 3, 3], True, "")),
        (CARD | {"cores": 2}, {}, (1, 0, [2], False, "a")),
        (CARD | {"memory": 4 * GIB}, {}, (2, 0, [8, 8], False, "a")),
        (CARD, {"shared_engine": True, "workers": 3}, (3, 1, [6, 5, 5], False, "a")),
        (TWO_CARDS, {}, (8, 0, [2] * 8, False, "ab")),
        (TWO_CARDS | {"cores": 2}, {}, (2, 0, [1, 1], False, "ab")),
        (TWO_CARDS, {"shared_engine": True}, (8, 2, [2] * 8, False, "ab")),
        (TWO_CARDS, {"shared_engine": True, "workers": 1}, (1, 1, [16], False, "a")),
        # No GPU is listed: without NVML, there may be one, of unknown memory.
        ({"cuda": True}, {}, (5, 0, [4, 3, 3, 3, 3], True, "")),
        ({"cuda": True, "nvml": False}, {}, (1, 0, [16], False, "")),
        ({"cuda": True, "nvml": False}, {"shared_engine": True}, (8, 1, [2] * 8, False, "")),
        ({"cuda": True}, {"device": "cuda"}, (1, 0, [16], False, "")),
        ({"cuda": True}, {"device": "tensorrt", "workers": 2}, (2, 0, [8, 8], False, "")),
    ],
)
def test_plan(
    monkeypatch: pytest.MonkeyPatch, machine: dict[str, Any], settings: dict[str, Any], wanted: Any
) -> None:
    plan = make_plan(monkeypatch, machine, **settings)
    cores = [share.count for share in plan.shares]
    pinned = all(share.numbers for share in plan.shares)
    names = "".join(gpu.uuid for gpu in plan.gpus)
    assert (plan.workers, plan.engines, cores, pinned, names) == wanted


@pytest.mark.parametrize(
    ("machine", "settings", "threads"),  # of the model and of decoding
    [
        *(({}, {}, (4, 4)), ({}, {"intra_op_threads": 1, "decode_threads": 3}, (1, 3))),
        *((CARD, {}, (2, 4)), (CARD | {"cores": 3}, {}, (3, 3)), (CARD, {"workers": 1}, (16, 8))),
        (CARD, {"shared_engine": True}, (2, 2)),
    ],
)
def test_threads_follow_from_the_share(
    monkeypatch: pytest.MonkeyPatch, machine: Any, settings: Any, threads: tuple[int, int]
) -> None:
    own = make_plan(monkeypatch, machine, **settings).adapt_settings(1, Settings(**settings))
    assert (own.intra_op_threads, own.decode_threads) == threads


def test_limits_of_the_service_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(monkeypatch, {}, workers=4)
    own = plan.adapt_settings(4, Settings())
    assert (own.max_held_bytes, own.max_decoding_pixels) == (256 * MIB, 16_000_000)
    assert (own.queue_size, own.max_body_bytes) == (64, 20 * MIB)
    least = Settings(max_held_bytes=900, max_body_bytes=600, max_decoding_pixels=3)
    assert plan.adapt_settings(1, least).max_held_bytes == 600
    assert plan.adapt_settings(1, least).max_decoding_pixels == 1
    assert plan.adapt_settings(1, Settings(max_held_bytes=900)).max_held_bytes == 900  # invalid


def test_workers_take_turns_on_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(monkeypatch, TWO_CARDS, workers=3)
    assert [plan.find_gpu(number) for number in (1, 2, 3)] == [Gpu("a"), Gpu("b"), Gpu("a")]
    assert make_plan(monkeypatch, {}).find_gpu(1) is None


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"workers": 2}, "workers must be 1 on this system; it is 2"),
        ({"shared_engine": True}, "shared_engine must be false on this system"),
    ],
)
def test_several_processes_need_linux(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], says: str
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert make_plan(monkeypatch, {}).workers == 1
    with pytest.raises(StartError, match=says):
        make_plan(monkeypatch, {}, **settings)


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
