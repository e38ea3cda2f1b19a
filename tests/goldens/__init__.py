"""Reads the recorded outputs of the authors' code that lie beside this file.

A case holds no weights: they are drawn from its seed, key by key in sorted order, from one
PCG64 stream of float32 normals, and scaled by the rules in `_scaled`.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).parent
# Scales of RAM's tensors, by the end of their names.
_RAM_SCALES = {
    "layer.0.crossattention.self.query.weight": 20.0,
    "layer.1.crossattention.self.query.weight": 2.5,
    "layer.0.crossattention.output.dense.weight": 0.04,
    "layer.0.crossattention.output.dense.bias": 0.005,
    "layer.1.crossattention.output.dense.weight": 1.0,
    "wordvec_proj.bias": 0.01,
    "attn.qkv.weight": 2.0,
    "attn.proj.weight": 0.6,
    "mlp.fc2.weight": 0.4,
    "image_proj.weight": 0.8,
    "fc.weight": 1.8,
}
Array = NDArray[Any]


@dataclass(frozen=True)
class Golden:
    """One case."""

    name: str  # file name without its ending
    # `mldecoder` and `mldecoder_zsl` (heads alone), `timm_mldecoder` (on a timm backbone),
    # `tresnet_mldecoder` (on the authors' own), `query2label_head`; `ram` and `ram_plus`, with
    # `_head` (alone) or `_openset` (with other labels)
    kind: str
    config: dict[str, Any]  # the authors' arguments
    state: dict[str, Array]  # under the authors' key names
    inputs: tuple[Array, ...]
    expected: Array  # logits [B, N] of the authors' code in float64
    tolerance: float  # largest absolute difference that counts as equal


def golden_names(prefix: str = "") -> list[str]:
    """Names of the cases that start with `prefix`; without one, of all."""
    return sorted(p.stem for p in FOLDER.glob(f"{prefix}*.npz"))


def read_golden(name: str) -> Golden:
    """Reads one case and draws its weights and input."""
    with np.load(FOLDER / f"{name}.npz") as file:
        meta = json.loads(str(file["meta"]))
        expected = file["expected_f64"]
    state = _draw_state(meta)
    for key, values in meta["probe"].items():  # notices another random stream
        np.testing.assert_allclose(state[key].ravel()[:2], values, rtol=1e-5)
    return Golden(
        name=name,
        kind=meta["kind"],
        config=meta["config"],
        state=state,
        inputs=tuple(_draw_input(spec) for spec in meta["inputs"]),
        expected=expected,
        tolerance=max(5e-5, 10 * meta["noise_f32_vs_f64"]),
    )


def _draw_state(meta: dict[str, Any]) -> dict[str, Array]:
    rng = np.random.Generator(np.random.PCG64(meta["seed"]))
    shapes = {key: tuple(shape) for key, shape, _ in meta["tensors"]}
    state: dict[str, Array] = {}
    ram = any(key.startswith("tagging_head.") for key in shapes)
    for key in sorted(shapes):
        if key.endswith(("relative_position_index", "attn_mask", "position_ids")):
            state[key] = np.zeros(shapes[key], np.float32)  # a reader has to compute these
            continue
        if key.endswith("num_batches_tracked"):
            state[key] = np.zeros(shapes[key], np.int64)
            continue
        normal = np.asarray(rng.standard_normal(shapes[key], dtype=np.float32))
        is_norm = key.rpartition(".")[0] + ".running_var" in shapes
        scaled = _scaled_ram(key, normal) if ram else None
        if scaled is None:
            scaled = _scaled(key, normal, is_norm, meta["conv_gain"])
        state[key] = scaled.astype(np.float32)
    for key, source in (meta.get("tied") or {}).items():
        state[key] = state[source].copy()
    return state


def _scaled_ram(key: str, normal: Array) -> Array | None:
    if key.endswith("relative_position_bias_table"):
        return normal
    if key == "reweight_scale":
        return np.asarray(np.float32(-math.log(0.07)) + np.float32(0.1) * normal)
    if key == "label_embed":
        return _unit_rows(normal, 1 if len(normal) % 51 else 51)
    if key.startswith("visual_encoder.") and key.endswith(".bias"):
        return normal * np.float32(0.02)
    for end, scale in _RAM_SCALES.items():
        if key.endswith(end) and not key.startswith(("tag_encoder.", "text_decoder.")):
            return normal * np.float32(scale / math.sqrt(math.prod(normal.shape[1:])))
    return None


def _unit_rows(normal: Array, descriptions: int) -> Array:
    """Rows of length 1; of one label they are alike (a cosine of about 0.7)."""
    rows = normal.astype(np.float64).reshape(-1, descriptions, normal.shape[-1])
    rows = np.concatenate([rows[:, :1], rows[:, 1:] + rows[:, :1]], axis=1)
    rows /= np.sqrt((rows * rows).sum(axis=-1, keepdims=True))
    return rows.reshape(normal.shape).astype(np.float32)


def _scaled(key: str, normal: Array, is_batch_norm: bool, conv_gain: float) -> Array:
    leaf = key.rpartition(".")[2]
    shape = normal.shape
    if leaf == "running_var":
        return np.float32(0.5) + np.abs(normal)
    if leaf == "weight" and len(shape) == 1:
        scale = np.float32(1) + np.float32(0.1) * normal
        return np.where(normal > 1, -scale, scale) if is_batch_norm else scale
    if leaf.endswith("bias") or leaf == "b" or len(shape) <= 1:
        return np.float32(0.1) * normal
    if key.endswith("query_embed.weight") or leaf == "pe":
        return normal
    return normal * np.float32(_gain(leaf, shape, conv_gain))


def _gain(leaf: str, shape: tuple[int, ...], conv_gain: float) -> float:
    if leaf == "in_proj_weight":
        return 2.0 / math.sqrt(shape[1])
    if leaf == "duplicate_pooling":
        return 1.0 / math.sqrt(shape[-2])
    if leaf == "W":
        return 1.0 / math.sqrt(shape[-1])
    return (conv_gain if len(shape) == 4 else 1.0) / math.sqrt(math.prod(shape[1:]))


def _draw_input(spec: dict[str, Any]) -> Array:
    rng = np.random.Generator(np.random.PCG64(spec["seed"]))
    shape = tuple(spec["shape"])
    if spec["kind"] == "features":
        return np.maximum(rng.standard_normal(shape, dtype=np.float32), np.float32(0))
    if spec["kind"] == "wordvec":
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(0.3)
    if spec["kind"] == "text_embed":
        return _unit_rows(rng.standard_normal(shape, dtype=np.float32), spec.get("per_label", 1))
    if spec["kind"] == "image_embeds":  # first a class token, which is not the others' mean
        normal = rng.standard_normal(shape, dtype=np.float32)
        rest = normal[:, 1:] + np.float32(0.5) * normal[:, :1]
        return np.concatenate([normal[:, :1], rest], axis=1)
    tint = None
    if spec["kind"] == "image_norm":
        tint = rng.random((*shape[:2], 1, 1), dtype=np.float32)
        rng = np.random.Generator(np.random.PCG64(spec["seed"]))
    batch, channels, height, width = shape
    blocks = rng.random((batch, channels, -(-height // 16), -(-width // 16)), dtype=np.float32)
    coarse = blocks.repeat(16, axis=2).repeat(16, axis=3)[:, :, :height, :width]
    noise = rng.random(shape, dtype=np.float32)
    image = np.float32(0.75) * coarse + np.float32(0.25) * noise
    if tint is None:
        return image
    mean, std = np.float32([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).reshape(2, 3, 1, 1)
    return (np.float32(0.6) * image + np.float32(0.4) * tint - mean) / std
