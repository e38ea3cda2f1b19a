import onnx
import pytest
import torch
from onnx import TensorProto
from torch import Tensor

from export import ExportError
from export.graphs.graph import Graphs, open_session
from export.graphs.optimise import optimise
from export.graphs.trace import PixelEncoder, trace_encoder
from export.graphs.verify import FP32_TOLERANCE, make_noise
from models.backbones.backbone import Backbone
from models.config import InputConfig
from tests.export.tiny_network import ENCODER_WIDTH, INPUT, LABELS, NUM_TOKENS, assert_close


def _describe(port: onnx.ValueInfoProto) -> tuple[str, int, list[str | int]]:
    tensor = port.type.tensor_type
    return port.name, tensor.elem_type, [d.dim_param or d.dim_value for d in tensor.shape.dim]


def test_graphs_are_dynamic_in_images_and_the_head_in_tokens_too(graphs: Graphs) -> None:
    pixels, fixed = [INPUT.height, INPUT.width, 3], [NUM_TOKENS, ENCODER_WIDTH]
    encoder, head = graphs["encoder"].graph, graphs["trained_head"].graph
    assert _describe(encoder.input[0]) == ("images", TensorProto.UINT8, ["B", *pixels])
    assert _describe(encoder.output[0]) == ("tokens", TensorProto.FLOAT, ["B", *fixed])
    assert _describe(head.input[0]) == ("tokens", TensorProto.FLOAT, ["B", "S", ENCODER_WIDTH])
    assert _describe(head.output[0]) == ("logits", TensorProto.FLOAT, ["B", len(LABELS)])


@pytest.mark.parametrize(
    ("name", "centre"), [("test_vit", 0.5), ("test_resnet", 0.5), ("test_vit_relpos", 0.0)]
)
def test_graph_of_another_kind_of_backbone_equals_torch(name: str, centre: float) -> None:
    torch.manual_seed(0)
    prepared = {"mean": (centre,) * 3, "std": (0.5,) * 3} if centre else {}
    spec = InputConfig.model_validate({"height": 64, "width": 64, **prepared})
    backbone = Backbone(name, (64, 64)).eval()
    session = open_session(optimise(trace_encoder(backbone, spec)))
    for images in (make_noise(1, spec), make_noise(3, spec)):
        tokens = session.run(["tokens"], {"images": images})[0]
        with torch.inference_mode():
            expected = PixelEncoder(backbone, spec)(torch.from_numpy(images)).numpy()
        assert_close(tokens, expected, FP32_TOLERANCE)


class _Untraceable(torch.nn.Module):
    """Branches on its pixels, which no graph can."""

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(2) if images.sum() > 0 else images.flatten(2) + 1


def test_trace_fails_with_one_line() -> None:
    spec = InputConfig(height=8, width=8)
    with pytest.raises(ExportError, match=r"^the network cannot be traced to ONNX: [^\n]+$"):
        trace_encoder(_Untraceable(), spec)
