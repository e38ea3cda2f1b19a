"""The setting `cuda_options`, and encoders that a GPU replays as CUDA graphs."""

from dataclasses import dataclass

import numpy as np
import onnxruntime as ort

from service.bundle.card import CPU_DEVICES, Device
from service.bundle.manifest import GraphName
from service.errors import StartError
from service.images.decode import PixelArray

_GRAPHS = "enable_cuda_graph"
_ON = {"1", "true", "True"}  # as ONNX Runtime reads them
# The values of our own options. A process uses the first visible GPU.
_VALUES = {"shared_arena": ("0", "1"), "size_factor": ("2", "4", "8", "16"), "device_id": ("0",)}


@dataclass(frozen=True)
class CudaOptions:
    """How sessions use a GPU; `provider` has ONNX Runtime's names and values."""

    provider: tuple[tuple[str, str], ...] = ()
    shared_arena: bool = False  # all sessions allocate activations and workspaces in one arena
    size_factor: int = 2  # batch sizes are its powers; each has an encoder

    @property
    def uses_graphs(self) -> bool:
        """Whether CUDA captures the kernels of encoders and replays them as one graph."""
        return dict(self.provider).get(_GRAPHS) in _ON

    def list_for(self, graph: GraphName) -> list[tuple[str, str]]:
        """Returns the provider's options for a graph: those but the encoder have varying shapes."""
        return [each for each in self.provider if graph == "encoder" or each[0] != _GRAPHS]


def parse_cuda_options(text: str | None, device: Device) -> CudaOptions:
    """Reads `NAME=VALUE,...`; raises `StartError`. ONNX Runtime checks its names in a session."""
    if not text:
        return CudaOptions()
    if device in CPU_DEVICES:
        raise StartError(f"cuda_options: device {device} has none: set device cuda, or unset them")
    found: dict[str, str] = {}
    for part in text.split(","):
        name, _, value = (each.strip() for each in part.partition("="))
        if not (name and value) or name in found:
            raise StartError(f"cuda_options: {part!r} must be NAME=VALUE, each name once")
        if value not in (allowed := _VALUES.get(name, (value,))):
            raise StartError(f"cuda_options: {name} must be {' or '.join(allowed)}; it is {value}")
        found[name] = value
    if found.get("fuse_conv_bias") in _ON and found.get("prefer_nhwc") not in _ON:
        raise StartError("cuda_options: fuse_conv_bias gives wrong scores without prefer_nhwc=1")
    arena, factor = found.pop("shared_arena", "0"), found.pop("size_factor", "2")
    options = CudaOptions(tuple(found.items()), arena == "1", int(factor))
    if options.uses_graphs and device != "cuda":
        raise StartError(f"cuda_options: {_GRAPHS} needs device cuda; it is {device}")
    return options


class Replay:
    """An encoder of one batch size, whose kernels CUDA captures in its first run.

    A captured graph reads and writes the addresses that it was captured with, and ONNX Runtime
    captures again for each thread. So one thread must run all replays of a process, and the tokens
    must be read before it runs the next.
    """

    def __init__(self, encoder: ort.InferenceSession, size: int, memory: str) -> None:
        """Allocates images and tokens in `memory`; raises `StartError` if their size is unknown."""
        (images,), (tokens,) = encoder.get_inputs(), encoder.get_outputs()
        if not all(isinstance(length, int) for length in tokens.shape[1:]):
            raise StartError(f"cuda_options: unset {_GRAPHS}: tokens have shape {tokens.shape}")
        self._encoder = encoder
        self._images, self._tokens = (
            ort.OrtValue.ortvalue_from_shape_and_type([size, *tensor.shape[1:]], kind, memory)
            for tensor, kind in ((images, np.uint8), (tokens, np.float32))
        )
        self._binding = encoder.io_binding()
        self._binding.bind_ortvalue_input(images.name, self._images)
        self._binding.bind_ortvalue_output(tokens.name, self._tokens)

    def run(self, images: PixelArray) -> ort.OrtValue:
        """Returns the tokens of a batch, float32 [B, S, C]; the next run overwrites them."""
        self._images.update_inplace(np.ascontiguousarray(images))
        self._encoder.run_with_iobinding(self._binding)
        return self._tokens
