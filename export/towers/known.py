"""Facts about published files: hashes that must be theirs, and numbers that no ONNX file has."""

import math
from typing import NamedTuple

# Hash, the side of onnx-community/siglip2-base-patch16-SIDE-ONNX, and the file's name.
_PINS = """
f2eb8ccfa3dc0b3761d9ea9a39554fe0f2be71b247ad7f68a80720ec88895650 256 vision_model_quantized.onnx
6f59b39d880c413042314b79302b74d0dd93b273caf8fbfdb1eb2df61a7fefd4 256 text_model_quantized.onnx
cb9140fae3ac5122c972d37adf83e1248471a38147ad76f8215c8872c6fd8322 256 tokenizer.json
c0573e3f4140c3a7c4e9cc5912bd6b26a033b46a6a8e8af26cbea262b163bcad 224 vision_model.onnx
baf12d941beabafafb14f7b4adb38dc15be18681b964a84410ec53d9d65e6293 224 text_model.onnx
cb9140fae3ac5122c972d37adf83e1248471a38147ad76f8215c8872c6fd8322 224 tokenizer.json
"""
PINS = {
    (f"hf-hub:onnx-community/siglip2-base-patch16-{side}-ONNX", name): digest
    for digest, side, name in map(str.split, _PINS.strip().splitlines())
}
"""SHA-256 in hex, by the repository and the file's name."""


class Logits(NamedTuple):
    """A logit is scale * cosine + bias."""

    scale: float
    bias: float


# OpenAI's README of CLIP multiplies by 100, at which its training stops the scale.
LOGITS = {
    "siglip2-base-patch16-224": Logits(math.exp(4.7244534), -16.771725),
    "clip-vit-base-patch32": Logits(100.0, 0.0),
    "clip-vit-large-patch14": Logits(100.0, 0.0),
}
"""By the last part of the name of a repository, without `-ONNX`."""
