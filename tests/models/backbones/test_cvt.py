"""Query2Label on CvT: the authors' names, and what their code computes with them."""

from itertools import count
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from models.checkpoints.checkpoint import read_checkpoint
from tests.models.checkpoints import assert_refused
from tests.models.checkpoints.test_layouts import State, make_official_head, write_query2label

WIDTHS, HEADS, DEPTHS = (64, 192, 384), (1, 3, 6), (1, 2, 10)
PATCHES = ((7, 4, 2), (3, 2, 1), (3, 2, 1))  # kernel, stride, padding


def official_shapes() -> dict[str, tuple[int, ...]]:
    """CvT-13's tensors in microsoft/CvT's cls_cvt.py, without the classifier."""
    shapes: dict[str, tuple[int, ...]] = {"norm.weight": (384,), "norm.bias": (384,)}
    inputs = 3
    for i, (width, depth) in enumerate(zip(WIDTHS, DEPTHS, strict=True)):
        kernel = PATCHES[i][0]
        stage = {"patch_embed.proj.weight": (width, inputs, kernel, kernel)}
        vectors = ["patch_embed.proj.bias", "patch_embed.norm.weight", "patch_embed.norm.bias"]
        for b in range(depth):
            block = f"blocks.{b}."
            for name in "qkv":
                stage[f"{block}attn.conv_proj_{name}.conv.weight"] = (width, 1, 3, 3)
                norms = ("weight", "bias", "running_mean", "running_var")
                vectors += [f"{block}attn.conv_proj_{name}.bn.{leaf}" for leaf in norms]
            for name in ("proj_q", "proj_k", "proj_v", "proj"):
                stage[f"{block}attn.{name}.weight"] = (width, width)
                vectors.append(f"{block}attn.{name}.bias")
            stage[f"{block}mlp.fc1.weight"] = (4 * width, width)
            stage[f"{block}mlp.fc1.bias"] = (4 * width,)
            stage[f"{block}mlp.fc2.weight"] = (width, 4 * width)
            vectors.append(f"{block}mlp.fc2.bias")
            vectors += [f"{block}norm{n}.{leaf}" for n in (1, 2) for leaf in ("weight", "bias")]
        shapes |= {f"stage{i}.{name}": shape for name, shape in stage.items()}
        shapes |= {f"stage{i}.{name}": (width,) for name in vectors}
        inputs = width
    return shapes | {"stage2.cls_token": (1, 1, 384)}


def compute(state: State, images: Tensor) -> Tensor:
    """The authors' forward pass, read off their code: features [B, C, H, W]."""
    x = images
    for i in range(3):
        x = compute_stage({k[7:]: v for k, v in state.items() if k.startswith(f"stage{i}.")}, x, i)
    x = functional.layer_norm(x.movedim(1, -1), (384,), state["norm.weight"], state["norm.bias"])
    return x.movedim(-1, 1)


def compute_stage(s: State, x: Tensor, stage: int) -> Tensor:
    def linear(name: str, x: Tensor) -> Tensor:
        return functional.linear(x, s[f"{name}.weight"], s[f"{name}.bias"])

    def norm(name: str, x: Tensor) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], s[f"{name}.weight"], s[f"{name}.bias"])

    def project(name: str, x: Tensor, stride: int) -> Tensor:
        cls, grid = x[:, : -h * w], x[:, -h * w :].mT.unflatten(2, (h, w))
        grid = functional.conv2d(
            grid, s[f"{name}.conv.weight"], None, stride, 1, groups=len(cls.mT[0])
        )
        stored = (
            s[f"{name}.bn.{leaf}"] for leaf in ("running_mean", "running_var", "weight", "bias")
        )
        return torch.cat([cls, functional.batch_norm(grid, *stored).flatten(2).mT], 1)

    _, step, padding = PATCHES[stage]
    x = functional.conv2d(
        x, s["patch_embed.proj.weight"], s["patch_embed.proj.bias"], step, padding
    )
    h, w = x.shape[2:]
    x = norm("patch_embed.norm", x.flatten(2).mT)
    if "cls_token" in s:
        x = torch.cat([s["cls_token"].expand(len(x), -1, -1), x], 1)
    for b in count():
        block = f"blocks.{b}."
        if f"{block}norm1.weight" not in s:
            break
        normed = norm(f"{block}norm1", x)
        q, k, v = (
            linear(f"{block}attn.proj_{n}", project(f"{block}attn.conv_proj_{n}", normed, stride))
            .unflatten(2, (HEADS[stage], -1))
            .transpose(1, 2)
            for n, stride in (("q", 1), ("k", 2), ("v", 2))
        )
        attended = (q @ k.mT * WIDTHS[stage] ** -0.5).softmax(-1) @ v
        x = x + linear(f"{block}attn.proj", attended.transpose(1, 2).flatten(2))
        inner = linear(f"{block}mlp.fc1", norm(f"{block}norm2", x))
        x = x + linear(f"{block}mlp.fc2", inner * torch.sigmoid(1.702 * inner))
    return x[:, -h * w :].mT.unflatten(2, (h, w))


def make_state() -> State:
    stream = torch.Generator().manual_seed(0)
    return {
        name: torch.rand(shape, generator=stream) + 0.5
        if name.endswith("running_var")
        else torch.randn(shape, generator=stream) * (0.05 if len(shape) > 1 else 0.3)
        for name, shape in official_shapes().items()
    }


@torch.inference_mode()
def test_query2label_on_a_cvt_equals_the_authors_code(tmp_path: Path) -> None:
    state = make_state()
    path, head = write_query2label(tmp_path, make_official_head(384, (4, 6)), state)
    network = read_checkpoint(path).take_network()
    spec = network.config.input
    assert (network.config.backbone, spec.height, spec.width) == ("cvt_13", 64, 96)
    images = torch.randn(2, 3, 64, 96)
    expected = head(compute(state, images))
    torch.testing.assert_close(network(images), expected, rtol=1e-4, atol=1e-4)


def test_a_backbone_that_is_not_query2labels_is_refused(tmp_path: Path) -> None:
    head = make_official_head(512, (2, 2))
    for key in ("stage0.patch_embed.proj.weight", "body.conv1.weight"):
        path, _ = write_query2label(tmp_path, head, {key: torch.zeros(1)})
        assert_refused(path, "none of Query2Label's")
