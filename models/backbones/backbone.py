"""Backbones: timm models with spatial features, and a few more, as images -> tokens."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

import timm
import torch
from timm.models.coat import CoaT
from timm.models.pit import PoolingVisionTransformer
from timm.models.volo import VOLO
from torch import Tensor, nn

from models.backbones import tresnet
from models.config import Features, InputConfig, ModelArgument, PrefixTokens, TimmHeadConfig
from models.heads.attention import to_tokens
from models.timm_model import BackboneError, create_timm, is_channels_last, pretrained_cfg


class Backbone(nn.Module):
    """A model of timm or `tresnet.py`, without classifier, with random weights.

    Only models with a position table need the size, (H, W) in pixels. With `norm_pooled`, a norm
    in the model's own head does not normalise tokens instead. With `own_head`, only the parts of
    that head are left out. Raises BackboneError.
    """

    def __init__(  # noqa: PLR0913 - the facts of one network
        self,
        name: str,
        image_size: tuple[int, int] | None = None,
        prefix_tokens: PrefixTokens = "drop",
        features: Features = "forward_features",
        *,
        norm_pooled: bool = False,
        model_args: Mapping[str, ModelArgument] = MappingProxyType({}),
        own_head: TimmHeadConfig | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        if own_head is None:
            self.body = _create(name, image_size, norm_pooled, model_args)
        else:
            options = {"num_classes": own_head.num_classes}
            self.body = create_timm(name, image_size, options, model_args)
            for part in own_head.parts:
                setattr(self.body, part, nn.Identity())
        self.prefix_tokens = count_prefix_tokens(self.body)
        self._num_dropped = self.prefix_tokens if prefix_tokens == "drop" else 0
        self.features = features
        body = cast("Any", self.body)
        width = getattr(body, "head_hidden_size", None) if features == "forward" else None
        self.width = int(width or body.num_features)  # C

    def split(self, frozen_stages: int) -> tuple[nn.Module, nn.Module]:
        """Returns (images -> features, features -> tokens), which share the parameters.

        The first part has the stem and `frozen_stages` stages; from `num_stages` on, everything.
        """
        if frozen_stages >= self.num_stages:
            return self, nn.Identity()
        if frozen_stages == 0:
            return nn.Identity(), self
        body = cast("Any", self.body)
        leading = nn.Sequential(body.conv_stem, body.bn1, *body.blocks[:frozen_stages])
        return leading, _TrailingStages(self, frozen_stages)

    @property
    def num_stages(self) -> int:
        """Number of stages that `split` can cut between; 1 if it cannot."""
        if all(hasattr(self.body, part) for part in ("conv_stem", "blocks", "conv_head", "bn2")):
            return len(cast("nn.Sequential", self.body.blocks))
        return 1

    def as_tokens(self, features: Tensor) -> Tensor:
        """Maps the model's own feature layout to tokens [B, S, C]."""
        dropped = self._num_dropped if features.dim() == 3 else 0
        return flatten_features(self.body, features)[:, dropped:]

    def forward(self, images: Tensor) -> Tensor:
        """Encodes normalised images [B, 3, H, W] to tokens [B, S, C]."""
        return self.as_tokens(getattr(self.body, self.features)(images))

    @torch.inference_mode()
    def count_tokens(self, image_size: tuple[int, int]) -> int:
        """Returns S for images of (H, W) pixels, or raises BackboneError; sets eval mode."""
        image = torch.zeros(1, 3, *image_size, device=next(self.parameters()).device)
        try:
            tokens = self.eval()(image)
        except Exception as error:  # timm's models raise many types
            raise BackboneError(
                f"{self.name} gives no map of features of {image_size[0]} x {image_size[1]} "
                "pixels: give another image size or backbone"
            ) from error
        return int(tokens.shape[1])


def _create(
    name: str,
    image_size: tuple[int, int] | None,
    norm_pooled: bool,
    model_args: Mapping[str, ModelArgument],
) -> nn.Module:
    if name in tresnet.NAMES:
        return tresnet.create_tresnet(name)
    try:
        try:
            pooling = {} if norm_pooled else {"global_pool": ""}
            body = create_timm(name, image_size, {"num_classes": 0, **pooling}, model_args)
        except (AssertionError, BackboneError):  # some models require their pooling
            body = create_timm(name, image_size, {"num_classes": 0}, model_args)
            body.head = nn.Identity()
    except BackboneError:
        raise
    except Exception as error:  # timm's models raise many types
        size = "" if image_size is None else f" for {image_size[0]} x {image_size[1]} pixels"
        raise BackboneError(f"timm cannot build {name}{size}") from error
    if isinstance(body, PoolingVisionTransformer):  # returns class tokens only
        raise BackboneError(f"{name} gives no map of features, only class tokens")
    return body


def count_prefix_tokens(model: nn.Module) -> int:
    """Returns the number of class and register tokens before a timm model's others."""
    unnamed = int(isinstance(model, (VOLO, CoaT)))  # timm does not count their class token
    return int(getattr(model, "num_prefix_tokens", unnamed))


def flatten_features(model: nn.Module, features: Tensor) -> Tensor:
    """Maps a timm model's features to tokens [B, S, C], prefix tokens included."""
    if features.dim() == 4 and is_channels_last(model):
        return features.flatten(1, 2)  # [B, H, W, C] -> [B, H * W, C]
    return to_tokens(features)


class _TrailingStages(nn.Module):
    """The other stages and the last convolution of timm's EfficientNet family."""

    def __init__(self, backbone: Backbone, stages: int) -> None:
        super().__init__()
        body = cast("Any", backbone.body)
        self.stages = nn.Sequential(*body.blocks[stages:], body.conv_head, body.bn2)
        self.as_tokens = backbone.as_tokens

    def forward(self, features: Tensor) -> Tensor:
        return self.as_tokens(self.stages(features))


def input_config(
    name: str,
    image_size: tuple[int, int] | None = None,
    given: Mapping[str, object] = MappingProxyType({}),
    *,
    crop: bool = False,
) -> InputConfig:
    """Reads the preparation of photos from timm's configuration of a model.

    Photos are squashed, because a centre crop (`crop`) would cut off labelled objects. `given` has
    overrides by timm's names, such as `img_size`. Raises BackboneError.
    """
    documented = "tresnet_v2_l" if name in tresnet.NAMES else name
    if not timm.is_model(documented):
        raise BackboneError(f"timm has no model named {name!r}")
    try:
        data = timm.data.resolve_data_config(dict(given), pretrained_cfg(documented))
        height, width = image_size or data["input_size"][1:]
        return InputConfig(
            height=height,
            width=width,
            mean=tuple(data["mean"]),
            std=tuple(data["std"]),
            interpolation=data["interpolation"],
            resize_mode="crop" if crop and data["crop_mode"] == "center" else "squash",
            crop_pct=data["crop_pct"] if crop else 1.0,
        )
    except (AssertionError, TypeError, ValueError) as error:  # timm's and pydantic's
        raise BackboneError(f"the preparation of photos for {name} is invalid") from error
