"""CLIP and SigLIP of random weights as repositories of ONNX files, in the layout of the hub's."""

import shutil
import warnings
from collections.abc import Collection
from pathlib import Path

import onnx
import safetensors.torch
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.transformers.float16 import convert_float_to_float16
from torch import Tensor, nn
from transformers import AutoModel


class _Tower(nn.Module):
    def __init__(self, tower: nn.Module, projection: nn.Module | None) -> None:
        super().__init__()
        self.tower, self.projection = tower, projection

    def forward(self, given: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        is_text = not given.is_floating_point()
        done = self.tower(given.long(), attention_mask=mask) if is_text else self.tower(given)
        if self.projection is None:
            return done.last_hidden_state, done.pooler_output
        return self.projection(done.pooler_output), done.last_hidden_state


def write_onnx_repository(  # noqa: PLR0913 - what differs between exporters
    folder: Path,
    source: Path,
    variants: Collection[str] = ("", "_quantized"),
    *,
    opset: int = 14,
    length: int | None = None,
    mask: bool = False,
    any_side: bool = False,
    external: bool = False,
    whole: bool = False,
    without: Collection[str] = (),
) -> Path:
    """Writes the repository of the model in `source`, a folder of `write_towers`; returns `folder`.

    Its variants are fp32, `_quantized`, and `_fp16`, which takes float16. Texts have `length`
    tokens, by default any; with a `mask` both are int32. Photos may claim `any_side`, weights of
    fp32 be `external`. `model.safetensors` is `whole`, or has scale and bias alone.
    """
    model = AutoModel.from_pretrained(source, attn_implementation="eager").eval()
    side, limit = model.config.vision_config.image_size, model.config.text_config
    ids = torch.ones(2, length or limit.max_position_embeddings, dtype=torch.int64)
    texts = {"input_ids": ids.int(), "attention_mask": ids.int()} if mask else {"input_ids": ids}
    sides = {1: "num_channels", 2: "height", 3: "width"} if any_side else {}
    (folder / "onnx").mkdir(parents=True)
    for name, inputs, part, axes in (
        ("vision", {"pixel_values": torch.rand(2, 3, side, side)}, ("visual", "image"), sides),
        ("text", texts, ("text", "text"), {} if length else {1: "sequence_length"}),
    ):
        projection = getattr(model, f"{part[0]}_projection", None)
        outputs = [f"{part[1]}_embeds", "last_hidden_state"]
        outputs = outputs if projection is not None else ["last_hidden_state", "pooler_output"]
        path, batch = folder / f"onnx/{name}_model.onnx", {0: "batch_size"}
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")  # the tracer's, and that this exporter is deprecated
            torch.onnx.export(
                _Tower(getattr(model, f"{name}_model"), projection),
                tuple(inputs.values()),
                str(path),
                input_names=list(inputs),
                output_names=outputs,
                dynamic_axes=dict.fromkeys(inputs, batch | axes) | dict.fromkeys(outputs, batch),
                opset_version=opset,
                dynamo=False,
            )
        _write_variants(path, variants)
        if external:
            data = f"{path.name}_data"
            onnx.save(onnx.load(path), path, save_as_external_data=True, location=data)
    for file in source.glob("*.json"):
        shutil.copy(file, folder)
    state = safetensors.torch.load_file(source / "model.safetensors")
    kept = {key: tensor for key, tensor in state.items() if whole or key.startswith("logit_")}
    safetensors.torch.save_file(kept, folder / "model.safetensors", {"format": "pt"})
    for absent in without:
        (folder / absent).unlink()
    return folder


def _write_variants(path: Path, variants: Collection[str]) -> None:
    """Writes variants of an fp32 file as the scripts of transformers.js do."""
    if "_quantized" in variants:
        quantize_dynamic(
            path,
            path.with_stem(f"{path.stem}_quantized"),
            per_channel=True,
            reduce_range=True,
            # ONNX Runtime has no convolution of int8 weights.
            weight_type=QuantType.QUInt8 if "vision" in path.stem else QuantType.QInt8,
            extra_options={"EnableSubgraph": True, "MatMulConstBOnly": True},
        )
    if "_fp16" in variants:
        onnx.save(convert_float_to_float16(onnx.load(path)), path.with_stem(f"{path.stem}_fp16"))
