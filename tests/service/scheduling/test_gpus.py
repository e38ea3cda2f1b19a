"""The GPUs that NVML lists and CUDA may use, by a fake NVML."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from service.errors import StartError
from service.scheduling.gpus import Gpu, count_fitting, list_gpus


class FakeNvml(ModuleType):
    """Three GPUs; the last is divided, with instances in two of four places. Handles are UUIDs."""

    class NVMLError(Exception):
        """What the module raises."""

    def __init__(self, *, driver: bool = True) -> None:
        super().__init__("pynvml")
        self._driver, self._opened = driver, 0
        self._instances = {"GPU-c3": ["MIG-d4", "MIG-e5"]}

    def nvmlInit(self) -> None:  # noqa: N802
        if not self._driver:
            raise self.NVMLError("NVML Shared Library Not Found")
        self._opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._opened -= 1

    def __getattr__(self, name: str) -> Any:
        assert self._opened == 1
        return {
            "nvmlDeviceGetCount": lambda: 3,
            "nvmlDeviceGetHandleByIndex": ["GPU-a1", "GPU-b2", "GPU-c3"].__getitem__,
            "nvmlDeviceGetHandleByUUID": str,
            "nvmlDeviceGetUUID": str,
            "nvmlDeviceGetMaxMigDeviceCount": lambda gpu: 4 if gpu in self._instances else 0,
            "nvmlDeviceGetMigDeviceHandleByIndex": self._find_instance,
            "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(free=7_000 + (gpu == "MIG-d4")),
        }[name]

    def _find_instance(self, gpu: str, place: int) -> str:
        if place % 2:
            raise self.NVMLError("Not Found")
        return self._instances[gpu][place // 2]


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
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.uuid for gpu in list_gpus()] == uuids.split()


def test_free_memory_is_asked_of_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    assert [Gpu(uuid).free_bytes() for uuid in ("GPU-a1", "MIG-d4")] == [7_000, 7_001]


@pytest.mark.parametrize(
    ("nvml", "reason"), [(None, "extra `gpu`"), (FakeNvml(driver=False), "Library Not Found")]
)
def test_no_gpus_are_listed_without_nvml(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, nvml: Any, reason: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert list_gpus() == []
    assert [reason in record.message for record in caplog.records] == [True]
    with pytest.raises(StartError, match=reason):
        Gpu("GPU-a1").free_bytes()


@pytest.mark.parametrize(
    ("before", "after", "count"),
    [(140_000, 138_000, 8), (10_000, 8_000, 3), (10_000, 2_000, 1), (5_000, 5_000, 1), (5, 9, 1)],
)
def test_processes_fit_with_a_quarter_of_growth_and_a_tenth_free(
    before: int, after: int, count: int
) -> None:
    assert count_fitting(before, after, most=8) == count
