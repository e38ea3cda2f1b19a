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
Array = NDArray[Any]


@dataclass(frozen=True)
class Golden:
    """One case."""

    name: str  # file name without its ending
    # `mldecoder` and `mldecoder_zsl` (heads alone), `timm_mldecoder` (on a timm backbone),
    # `tresnet_mldecoder` (on the authors' own) or `query2label_head`
    kind: str
    config: dict[str, Any]  # the authors' arguments
    state: dict[str, Array]  # under the authors' key names
    inputs: tuple[Array, ...]
    expected: Array  # logits [B, N] of the authors' code in float64
    tolerance: float  # largest absolute difference that counts as equal


def golden_names(prefix: str = "") -> list[str]:
    """Names of the cases that start with `prefix`; without one, of all."""
    return sorted(p.stem for p in FOLDER.glob(f"{prefix}*.npz") if p.stem != "q2l_sine_pe")


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
    for key in sorted(shapes):
        if key.endswith("num_batches_tracked"):
            state[key] = np.zeros(shapes[key], np.int64)
            continue
        normal = np.asarray(rng.standard_normal(shapes[key], dtype=np.float32))
        is_norm = key.rpartition(".")[0] + ".running_var" in shapes
        state[key] = _scaled(key, normal, is_norm, meta["conv_gain"]).astype(np.float32)
    return state


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
    batch, channels, height, width = shape
    blocks = rng.random((batch, channels, -(-height // 16), -(-width // 16)), dtype=np.float32)
    coarse = blocks.repeat(16, axis=2).repeat(16, axis=3)[:, :, :height, :width]
    noise = rng.random(shape, dtype=np.float32)
    return np.float32(0.75) * coarse + np.float32(0.25) * noise
