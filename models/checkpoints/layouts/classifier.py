"""Classifiers without a decoder: timm's, and the authors' TResNets of ASL (arXiv 2009.14119)."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from timm.data import ImageNetInfo, infer_imagenet_subset
from torch import Tensor

from models.backbones.backbone import count_prefix_tokens, flatten_features
from models.checkpoints.description import CheckpointError, Description, Hints, State, Weights
from models.checkpoints.layouts.body import check_tensors, prepare, read_body
from models.checkpoints.layouts.state import LEAVES, refuse_others
from models.config import GapConfig, NetworkConfig, TimmHeadConfig
from models.heads.baselines import Gap
from models.network import Network
from models.timm_model import classifier_names, create_timm, is_channels_last

_TOLERANCE = 1e-4  # of logits


def read_asl(state: State, hints: Hints, described: Description) -> Weights | None:
    """Translates a classifier of ASL's authors; returns None if it has no linear layer."""
    head = {k.removeprefix("head.").removeprefix("fc."): v for k, v in state.items()}
    linear = {leaf: head[leaf] for leaf in LEAVES if leaf in head}
    if "embedding_generator.0.weight" in head:
        # No activation between ASL's two linear layers, so they are merged.
        under, top = (
            {leaf: head[f"{layer}.{leaf}"].double() for leaf in LEAVES}
            for layer in ("embedding_generator.0", "FC")
        )
        weight, bias = top["weight"] @ under["weight"], top["weight"] @ under["bias"] + top["bias"]
        linear = {"weight": weight.float(), "bias": bias.float()}
    if len(linear) != 2:
        return None
    body = {key: tensor for key, tensor in state.items() if key.startswith("body.")}
    refuse_others(key for key in state.keys() - body.keys() if not key.startswith("head."))
    classes, width = linear["weight"].shape
    body, facts = read_body(body, hints, described, width)
    config = GapConfig(num_classes=classes, encoder_width=width)
    ours = Weights(_to_linear(linear), config, described.label_names)
    return ours.put_on(body, **facts)


def read_timm(name: str, state: State, hints: Hints, described: Description) -> Weights:
    """Translates a classifier of timm, its tensors under timm's names."""
    spec = prepare(name, hints, described)
    weight = state.get(f"{classifier_names(name)[0]}.weight")
    classes = 1 if weight is None else len(weight)  # `check_tensors` names a missing one

    def build() -> Any:  # noqa: ANN401
        options = {"num_classes": classes}
        return create_timm(name, (spec.height, spec.width), options, described.model_args)

    with torch.device("meta"):  # compares before memory is allocated
        model = build()
    own = model.state_dict()
    computed = {key for key, _ in model.named_buffers()} - own.keys()  # older timm stored them
    state = {key: tensor for key, tensor in state.items() if key not in computed}
    check_tensors(name, own, state, spec)
    model = build().eval()
    own = model.state_dict()
    state = {key: state.get(key, own[key]) for key in own}  # perhaps without counters
    model.load_state_dict(state)
    images = torch.rand(1, 3, spec.height, spec.width, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        example, features = (images, model(images)), model.forward_features(images)
        if not isinstance(features, Tensor) or features.dim() not in (3, 4):
            raise CheckpointError(f"{name} gives no single map of features, and cannot be served")
        logits, parts = _run_head(model, features)
        if logits.shape != (1, classes):
            raise CheckpointError(
                f"{name} must give a logit a class; with its model_args it gives "
                f"{tuple(logits.shape[1:])}"
            )
        inside = {key: v for key, v in state.items() if key.partition(".")[0] in parts}
        tokens = flatten_features(model, features)
        gap = _read_gap(inside, model, tokens, logits)
    body = {key: v for key, v in state.items() if key not in inside}
    names = described.label_names or _find_imagenet_names(classes)
    facts = {"backbone": name, "model_args": described.model_args, "input": spec}
    if gap is not None:
        prefix = "keep" if gap[1].pooling == "first" else "drop"
        weights = Weights(*gap, names, example=example)
        weights = weights.put_on(body, **facts, prefix_tokens=prefix)
        assert isinstance(weights.config, NetworkConfig)
        with torch.device("meta"):
            without = Network(weights.config).state_dict()
        if without.keys() == weights.state.keys():
            return weights
    sizes = tuple(features.shape[1:3] if is_channels_last(model) else features.shape[2:])
    head = TimmHeadConfig(
        num_classes=classes,
        encoder_width=tokens.shape[2],
        parts=parts,
        grid=sizes if features.dim() == 4 else None,
    )
    weights = Weights({f"model.{k}": v for k, v in inside.items()}, head, names, example=example)
    return weights.put_on(body, **facts, prefix_tokens="keep")


def _run_head(model: Any, features: Tensor) -> tuple[Tensor, tuple[str, ...]]:  # noqa: ANN401
    """Returns the logits, and the names of the modules with weights that compute them."""
    run: set[str] = set()
    for path, module in model.named_modules():
        if path:
            part = path.partition(".")[0]
            module.register_forward_pre_hook(lambda *_, part=part: run.add(part))
    logits: Tensor = model.forward_head(features)
    parts = (name for name, child in model.named_children() if name in run and child.state_dict())
    return logits, tuple(parts)


def _read_gap(
    head: State,
    model: Any,  # noqa: ANN401
    tokens: Tensor,
    logits: Tensor,
) -> tuple[State, GapConfig] | None:
    """Returns a head of pooling and one linear layer; None if it is more."""
    leaves = {key.rpartition(".")[2]: tensor for key, tensor in head.items()}
    if len(head) != 2 or tuple(leaves["weight"].shape[:2]) != (logits.shape[1], tokens.shape[2]):
        return None
    first = getattr(model, "global_pool", None) == "token"
    config = GapConfig(
        num_classes=logits.shape[1],
        encoder_width=tokens.shape[2],
        pooling="first" if first else "mean",
    )
    gap, state = Gap(config).eval(), _to_linear(leaves)
    gap.load_state_dict(state)
    found = gap(tokens[:, 0 if first else count_prefix_tokens(model) :])
    return (state, config) if found.allclose(logits, atol=_TOLERANCE) else None


def _to_linear(layer: Mapping[str, Tensor]) -> State:
    # A convolution of one pixel is a linear layer.
    return {f"linear.{leaf}": tensor.reshape(tensor.shape[:2]) for leaf, tensor in layer.items()}


def _find_imagenet_names(classes: int) -> tuple[str, ...] | None:
    """Returns the first lemma of each class; with its synset if two are the same."""
    subset = infer_imagenet_subset({"num_classes": classes})
    if subset is None:
        return None
    info = ImageNetInfo(subset)
    names = [lemmas.partition(",")[0] for lemmas in info.label_descriptions()]
    repeats = Counter(names)
    pairs = zip(names, info.label_names(), strict=True)
    return tuple(f"{name} ({synset})" if repeats[name] > 1 else name for name, synset in pairs)
