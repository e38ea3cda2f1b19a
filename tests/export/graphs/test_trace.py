import onnx
import pytest
import torch
from onnx import TensorProto
from torch import Tensor

from export.graphs.graph import Graphs, open_session
from export.graphs.optimise import optimise
from export.graphs.trace import PixelEncoder, TracingError, trace_encoder, trace_heads
from export.graphs.verify import FP32_TOLERANCE, make_noise
from models.backbones.backbone import Backbone
from models.config import InputConfig, MLDecoderConfig
from models.heads.ml_decoder import MLDecoder
from tests.export.graphs.test_heads import WIDTHS
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
    ("num_queries", "widths"),
    [
        # 4 attention heads * 5 queries < a width of 16 + 5: one matrix from a token to all scores.
        (5, {"value": 16, "scores": 20}),
        (6, {"value": 16, "key": 16}),
    ],
)
def test_fixed_queries_replace_the_keys_projection_when_few(
    num_queries: int, widths: dict[str, int]
) -> None:
    config = MLDecoderConfig(num_classes=num_queries, **WIDTHS)
    model = trace_heads(MLDecoder(config).eval(), NUM_TOKENS, ENCODER_WIDTH)["trained_head"]
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    relu = next(node for node in model.graph.node if node.op_type == "Relu")  # gives the memory
    readers = [node for node in model.graph.node if relu.output[0] in node.input]
    assert {node.op_type for node in readers} == {"MatMul"}
    read_shapes = [shapes[node.input[1]] for node in readers]
    assert sorted(read_shapes) == sorted((16, width) for width in widths.values())


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
    with pytest.raises(TracingError, match=r"^the network cannot be traced to ONNX: [^\n]+$"):
        trace_encoder(_Untraceable(), spec)
