"""NVIDIA GPUs by NVML, which does not initialise CUDA: this process may fork afterwards.

A GPU, or a MIG device, is the UUID that names it in `CUDA_VISIBLE_DEVICES`.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType

from service.errors import StartError

# Four processes took 7,108 MiB after their start and 8,722 under load.
_GROWTH = 1.25
_USED_SHARE = 0.9

logger = logging.getLogger(__name__)


def read_free_bytes(gpu: str) -> int:
    """Returns the free memory. Raises `StartError` if NVML does not answer."""
    with _open_nvml() as nvml:
        return int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(gpu)).free)


def list_gpus() -> list[str]:
    """Returns the GPUs that `CUDA_VISIBLE_DEVICES` permits; if NVML fails, logs why, returns none.

    Indices follow the PCI bus, as with `CUDA_DEVICE_ORDER=PCI_BUS_ID`. As in CUDA, the list ends at
    the first invalid entry, and a UUID may be a unique prefix.
    """
    try:
        with _open_nvml() as nvml:
            uuids = list(_list_uuids(nvml))
    except StartError as error:
        logger.warning("%s", error)
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return uuids if visible is None else list(_choose(uuids, visible))


def count_fitting(before: int, after: int, most: int) -> int:
    """Returns how many processes fit on a GPU, 1 to `most`, from its free bytes around one's start.

    A tenth of `before` stays free, and each process may grow by a quarter. If `after` is not less,
    other processes have freed memory meanwhile, and the answer is 1.
    """
    used = before - after
    return 1 if used <= 0 else max(1, min(most, int(_USED_SHARE * before / (_GROWTH * used))))


def _choose(uuids: list[str], visible: str) -> Iterator[str]:
    for entry in map(str.strip, visible.split(",")):
        by_name = [uuid for uuid in uuids if entry and uuid.startswith(entry)]
        chosen = uuids[int(entry) :][:1] if entry.isdecimal() else by_name
        if len(chosen) != 1:
            return
        yield chosen[0]


def _list_uuids(nvml: ModuleType) -> Iterator[str]:
    for index in range(nvml.nvmlDeviceGetCount()):
        device, instances = nvml.nvmlDeviceGetHandleByIndex(index), []
        with suppress(nvml.NVMLError):  # this GPU cannot be divided
            for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(device)):
                with suppress(nvml.NVMLError):  # it has no instance of this number
                    instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, number)
                    instances.append(nvml.nvmlDeviceGetUUID(instance))
        # CUDA runs on the instances of a divided GPU only.
        yield from instances or [nvml.nvmlDeviceGetUUID(device)]


@contextmanager
def _open_nvml() -> Iterator[ModuleType]:
    try:
        import pynvml
    except ImportError as error:
        reason = "nvidia-ml-py is missing: install the extra `gpu`"
        raise StartError(f"no GPU can be listed: {reason}") from error
    try:
        pynvml.nvmlInit()
        try:
            yield pynvml
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise StartError(f"no GPU can be listed: {error}: see nvidia-smi") from error
