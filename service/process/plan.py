"""How many processes serve, and each one's cores, GPU and share of the limits."""

import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec

from service.bundle.card import Device
from service.bundle.manifest import check_graphs, read_manifest
from service.bundle.reader import Bundle
from service.engine.devices import choose_precision, may_use_gpu
from service.errors import BundleError, StartError
from service.scheduling.cpu import CoreShare, count_cores, divide_cores, read_memory_limit
from service.scheduling.gpus import list_gpus
from service.settings import MIB, Settings

# 1, 2, 4 and 6 workers answered 702, 1,073, 1,271 and 1,342 requests/s on 16 cores (64 clients,
# int8). Next to an H200, whose cores only decode, 1, 4 and 8 answered 941, 2,280 and 2,475.
_CORES_PER_CPU_WORKER = 3
_CORES_PER_GPU_WORKER = 2
# 2, 4, 8 and 16 decoding threads of one process next to the H200 gave 592, 819, 956 and 837.
_LEAST_DECODERS, _MOST_DECODERS = 4, 8
# At the peak of its start a worker has a file, its parsed copy and the packed weights of two
# sessions: 1,488 MiB with ViT-B/16 in fp32, whose file has 327. All workers start together.
_COPIES = 4
_WORKER_BYTES = 128 * MIB
_BYTES_PER_PIXEL = 25  # a worker always decodes one photo of `max_pixels`

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """The processes of a service; numbers of workers are from 1."""

    workers: int
    shares: Sequence[CoreShare]  # of each worker
    gpus: Sequence[str]  # their UUIDs; none if NVML is missing
    on_gpu: bool

    def find_gpu(self, number: int) -> str | None:
        """Returns the UUID of a worker's GPU; None is CUDA's choice."""
        return self.gpus[(number - 1) % len(self.gpus)] if self.gpus else None

    def adapt_settings(self, number: int, settings: Settings) -> Settings:
        """Returns a worker's settings: threads by its cores, and its share of common limits."""
        cores = decoders = self.shares[number - 1].count
        if self.on_gpu:
            decoders = min(max(cores, min(_LEAST_DECODERS, count_cores())), _MOST_DECODERS)
        held_bytes = settings.max_held_bytes // self.workers
        changes = {
            "intra_op_threads": settings.intra_op_threads or cores,
            "decode_threads": settings.decode_threads or decoders,
            # A share has room for one body. If the whole has not, it is passed on undivided, and
            # the worker refuses to start.
            "max_held_bytes": max(
                held_bytes, min(settings.max_held_bytes, settings.max_body_bytes)
            ),
            "max_decoding_pixels": settings.max_decoding_pixels // self.workers,
        }
        return settings.model_copy(update=changes)


def plan_workers(settings: Settings) -> Plan:
    """Plans the processes. Raises `StartError` if they need Linux and this is another system."""
    if sys.platform != "linux" and settings.workers not in {1, "auto"}:
        raise StartError(f"workers must be 1 on this system; it is {settings.workers}")
    may_use = may_use_gpu(settings.device)
    gpus = list_gpus() if may_use else []
    # With device `auto`, the model runs on the CPU if NVML works and lists none.
    on_gpu = may_use and (bool(gpus) or settings.device != "auto" or not find_spec("pynvml"))
    workers = settings.workers
    if workers == "auto":
        workers = _count_workers(settings, len(gpus), on_gpu=on_gpu)
    return Plan(workers, divide_cores(workers, pin=not on_gpu), gpus[:workers], on_gpu)


def _count_workers(settings: Settings, gpus: int, *, on_gpu: bool) -> int:
    # Without NVML it is not known whether a GPU has memory for a second model.
    if sys.platform != "linux" or (on_gpu and not gpus):
        return 1
    cores = _CORES_PER_GPU_WORKER if on_gpu else _CORES_PER_CPU_WORKER
    wanted = max(count_cores() // cores, gpus, 1)
    if wanted == 1:
        return 1
    limit = read_memory_limit()
    worker_bytes = _estimate_memory(settings, "cuda" if on_gpu else "cpu")
    fitting = max(1, (limit - settings.max_held_bytes) // worker_bytes)
    if fitting < wanted:
        logger.info(
            "workers auto: %d instead of %d: each may take %d of the %d MiB of memory",
            *(fitting, wanted, worker_bytes // MIB, limit // MIB),
        )
    return min(wanted, fitting)


def _estimate_memory(settings: Settings, device: Device) -> int:
    """Returns the most bytes that a worker takes; `device` is what `auto` means."""
    total = _WORKER_BYTES + settings.max_pixels * _BYTES_PER_PIXEL
    with suppress(StartError, BundleError):  # the worker reports it
        bundle = Bundle(settings.bundle, read_manifest(settings.bundle), labels=())
        check_graphs(bundle.path, bundle.manifest)
        if settings.device != "auto":
            device = settings.device
        precision = choose_precision(bundle, device, settings.precision)
        for graph, variants in bundle.manifest.graphs.items():
            file = variants.get(bundle.image_precision(graph, precision)) or min(variants.values())
            total += _COPIES * bundle.manifest.files[file].bytes
    return total
