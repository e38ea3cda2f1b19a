import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from export.graphs.graph import GraphName, Graphs
from export.graphs.optimise import halve
from export.graphs.verify import FP32_TOLERANCE, VerificationError, make_noise, verify_graphs
from models.network import Network
from service.images.decode import PixelArray
from tests.export.tiny_network import INPUT


def with_weights(model: onnx.ModelProto, factor: float) -> onnx.ModelProto:
    """Scales the largest weight of a graph."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    tensor = max(changed.graph.initializer, key=lambda tensor: tensor.ByteSize())
    values = numpy_helper.to_array(tensor) * np.float32(factor)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return changed


@pytest.mark.parametrize("name", ["encoder", "trained_head"])
@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_graph_with_a_wrong_weight_is_refused(
    network: Network, graphs: Graphs, pixels: PixelArray, name: GraphName, factor: float
) -> None:
    wrong = {**graphs, name: with_weights(graphs[name], factor)}
    with pytest.raises(VerificationError, match="deviates from torch"):
        verify_graphs(network, wrong, INPUT, pixels, FP32_TOLERANCE)
    worst = verify_graphs(network, graphs, INPUT, pixels, FP32_TOLERANCE)
    assert 0 < worst.value <= FP32_TOLERANCE


class _Coarse(nn.Module):
    """A backbone whose float32 kernels are less exact than the graph's, from a batch size on."""

    def __init__(self, backbone: nn.Module, error: float, batch: int) -> None:
        super().__init__()
        self.backbone, self.error, self.batch = backbone, error, batch

    def forward(self, images: Tensor) -> Tensor:
        tokens: Tensor = self.backbone(images)
        coarse = tokens.dtype == torch.float32 and len(tokens) >= self.batch
        return tokens * (1 + self.error) if coarse else tokens


@pytest.mark.parametrize(
    ("error", "batch", "equal"), [(2e-4, 1, True), (2e-2, 2, True), (2e-2, 1, False)]
)
def test_graph_is_compared_with_float64_when_torch_itself_rounds(
    network: Network, graphs: Graphs, error: float, batch: int, *, equal: bool
) -> None:
    backbone, pixels = _Coarse(network.backbone, error, batch), make_noise(5, INPUT)
    coarse = nn.ModuleDict({"backbone": backbone, "head": network.head})
    refused = "no graph can be compared"
    if equal:
        assert verify_graphs(coarse, graphs, INPUT, pixels, FP32_TOLERANCE).value < 1e-5
        graphs = {**graphs, "encoder": with_weights(graphs["encoder"], 1.5)}
        refused = "deviates from torch"
    with pytest.raises(VerificationError, match=refused):
        verify_graphs(coarse, graphs, INPUT, pixels, FP32_TOLERANCE)


def test_graphs_of_another_normalisation_or_precision_are_refused(
    network: Network, graphs: Graphs, pixels: PixelArray
) -> None:
    other = INPUT.model_copy(update={"mean": (0.5, 0.4, 0.31)})
    with pytest.raises(VerificationError, match="tokens of 1 images"):
        verify_graphs(network, graphs, other, pixels, FP32_TOLERANCE)
    half = {name: halve(model) for name, model in graphs.items()}
    with pytest.raises(VerificationError):
        verify_graphs(network, half, INPUT, pixels, FP32_TOLERANCE)


def test_noise_is_seeded_and_uses_the_whole_range() -> None:
    noise = make_noise(8, INPUT)
    assert noise.shape == (8, INPUT.height, INPUT.width, 3)
    assert np.array_equal(noise, make_noise(8, INPUT))
    assert (noise.min(), noise.max()) == (0, 255)
