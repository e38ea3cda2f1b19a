"""The GPUs that NVML lists and CUDA may use, by a fake NVML."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from service.errors import StartError
from service.scheduling.gpus import count_fitting, list_gpus, read_free_bytes

# The third is divided; its handles, as those of all, are the UUIDs.
GPUS = {"GPU-a1": [], "GPU-b2": [], "GPU-c3": ["MIG-d4", "MIG-e5"]}


class NvmlError(Exception):
    """An error of the fake module."""


def find_instance(gpu: str, number: int) -> str:
    if number % 2:
        raise NvmlError("Not Found")
    return GPUS[gpu][number // 2]


def use_nvml(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Installs a fake `pynvml`."""
    module = ModuleType("pynvml")
    module.__dict__.update(
        NVMLError=NvmlError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(GPUS),
        nvmlDeviceGetHandleByIndex=[*GPUS].__getitem__,
        nvmlDeviceGetHandleByUUID=str,
        nvmlDeviceGetUUID=str,
        nvmlDeviceGetMaxMigDeviceCount=lambda gpu: 2 * len(GPUS[gpu]),
        nvmlDeviceGetMigDeviceHandleByIndex=find_instance,
        nvmlDeviceGetMemoryInfo=lambda gpu: SimpleNamespace(free=int(gpu[-1])),
    )
    module.__dict__.update(changes)
    monkeypatch.setitem(sys.modules, "pynvml", module)


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        (None, "GPU-a1 GPU-b2 MIG-d4 MIG-e5"),
        *(("", ""), ("-1", ""), ("GPU-", ""), ("1, 0", "GPU-b2 GPU-a1"), ("0,9,1", "GPU-a1")),
        *(("GPU-b,MIG-e5", "GPU-b2 MIG-e5"), ("2,GPU-c3,0", "MIG-d4"), ("0,,1", "GPU-a1")),
    ],
)
def test_gpus_are_those_that_cuda_may_use(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, uuids: str
) -> None:
    use_nvml(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    gpus = list_gpus()
    assert gpus == uuids.split()
    assert [read_free_bytes(gpu) for gpu in gpus] == [int(gpu[-1]) for gpu in gpus]


@pytest.mark.parametrize("missing", [True, False], ids=["package", "driver"])
def test_no_gpus_are_listed_without_nvml(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, missing: bool
) -> None:
    def fail() -> None:
        raise NvmlError("Library Not Found")

    use_nvml(monkeypatch, nvmlInit=fail)
    if missing:
        monkeypatch.setitem(sys.modules, "pynvml", None)
    assert list_gpus() == []
    reason = "install the extra `gpu`" if missing else "Library Not Found"
    assert [reason in message for message in caplog.messages] == [True]
    with pytest.raises(StartError, match=reason):
        read_free_bytes("GPU-a1")


@pytest.mark.parametrize(
    ("before", "after", "count"),
    [(140_000, 138_000, 8), (10_000, 8_000, 3), (10_000, 2_000, 1), (5_000, 5_000, 1), (5, 9, 1)],
)
def test_processes_fit_with_a_quarter_of_growth_and_a_tenth_free(
    before: int, after: int, count: int
) -> None:
    assert count_fitting(before, after, most=8) == count
