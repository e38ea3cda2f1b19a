"""Facts about a network besides its tensors: a user's hints, a foreign file's description.

Does not import torch, so that commands read their options and refuse mistakes at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from PIL import ImageColor
from pydantic import ValidationError

from models.commands import RequestError
from models.config import (
    Colour,
    CosineConfig,
    DecoderConfig,
    Features,
    HeadConfig,
    InputConfig,
    Interpolation,
    ModelArgument,
    NetworkConfig,
    OpenHeadConfig,
    PrefixTokens,
    Query2LabelConfig,
    Triple,
)

if TYPE_CHECKING:
    from torch import Tensor

State: TypeAlias = "dict[str, Tensor]"
Channels = Literal["rgb", "bgr"]
NO_PADDING = "none"
_MAX_PIXELS = 1536**2  # timm's largest models take 1024 x 1024; a ResNet-18 needs 380 MB at 1536


class CheckpointError(RequestError):
    """A checkpoint cannot be read or used; the message is one line."""


@dataclass(frozen=True)
class Hints:
    """Facts that the user gives; None means the file's own or the authors' default."""

    backbone: str | None = None  # timm name
    image_size: int | None = None  # height and width in pixels
    num_heads: int | None = None  # the authors' default: 8 in ML-Decoder, else 4
    pre_norm: bool | None = None  # Query2Label with the norms before the attention
    prefix_tokens: PrefixTokens | None = None  # whether a head sees class and register tokens
    features: Features | None = None  # which of a backbone's a head takes, if two fit
    crop: bool = False  # a centre crop, as timm evaluates a classifier
    pad: str | None = None  # colour around photos, `white` or `#rrggbb`; `NO_PADDING`
    channels: Channels | None = None  # the order that the file's network takes
    mean: Triple | None = None  # red, green, blue of pixels in 0..1; also if the network takes BGR
    std: Triple | None = None
    interpolation: Interpolation | None = None
    plain_pixels: bool = False  # trained on pixels in 0..1, without mean and std
    single_label: bool = False  # a photo has exactly one label, so scores are a softmax
    embedding_encoder: str | None = None  # name of the model whose embeddings an open head takes
    embedding_template: str | None = None  # text that it embeds, `{}` for a label's name

    def __post_init__(self) -> None:
        """Raises CheckpointError for options on photos that are invalid."""
        if self.pad is not None and read_color(self.pad) is not None and self.crop:
            raise CheckpointError(f"--crop does not fit --pad {self.pad}")
        if self.plain_pixels and (self.mean or self.std):
            raise CheckpointError("--plain-pixels does not fit --mean and --std")

    def complete(self, name: str, config: NetworkConfig) -> NetworkConfig:
        """Adds hints to a file's configuration; raises CheckpointError if one contradicts it.

        Another image size is one for two towers, and if the head has a position for each token.
        """
        self._check(name, config)
        self.check_size(name, config.input)
        changes: dict[str, object] = {}
        if self.single_label:
            changes["activation"] = "softmax"
        keys = ("embedding_encoder", "embedding_template")
        embedding = {key: value for key in keys if (value := getattr(self, key)) is not None}
        if embedding:
            if not isinstance(config.head, OpenHeadConfig):
                raise CheckpointError(f"{name} has trained labels, so it takes no embeddings")
            changes["head"] = config.head.model_copy(update=embedding)
        try:
            changes["input"] = self._prepare(config.input)
            return NetworkConfig.model_validate(dict(config) | changes)
        except ValidationError as error:
            raise CheckpointError(f"{name}: {first_reason(error)}") from error

    def check_size(self, name: str, spec: InputConfig) -> None:
        """Raises CheckpointError for a size that takes gigabytes, unless the user gives it too."""
        if spec.height * spec.width > _MAX_PIXELS and self.image_size is None:
            raise CheckpointError(
                f"{name} takes photos of {spec.height} x {spec.width} pixels: give --image-size if "
                "this is right"
            )

    def _prepare(self, spec: InputConfig) -> InputConfig:
        changes: dict[str, object] = {}
        if self.plain_pixels:
            changes = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
        side = self.image_size
        given = {"height": side, "width": side, "mean": self.mean, "std": self.std,
                 "interpolation": self.interpolation}  # fmt: skip
        changes |= {key: value for key, value in given.items() if value is not None}
        if side is not None and spec.fit_size == spec.height == spec.width:
            changes["fit_size"] = side
        color = None if self.pad is None else read_color(self.pad)
        if color is not None:
            changes |= {"resize_mode": "pad", "pad_color": color}
        elif self.pad is not None and spec.resize_mode == "pad":
            changes |= {"resize_mode": "squash", "fit_size": None}
        return InputConfig.model_validate(spec.model_dump() | changes)

    def _check(self, name: str, config: NetworkConfig) -> None:
        head, spec = config.head, config.input
        size = spec.height if spec.height == spec.width else None
        fixed = getattr(head, "grid", None) is not None or isinstance(head, CosineConfig)
        num_heads = head.num_heads if isinstance(head, DecoderConfig) else None
        pre_norm = isinstance(head, Query2LabelConfig) and head.pre_norm
        made = "was made with"
        for hint, fact, reason in (
            (self.backbone, config.backbone, f"{made} {config.backbone}, not {self.backbone}"),
            (self.prefix_tokens, config.prefix_tokens,
             f"{made} --prefix-tokens {config.prefix_tokens}"),
            (self.features, config.features, f"{made} --features {config.features}"),
            (self.crop or None, spec.resize_mode == "crop", "takes whole photos: leave out --crop"),
            (self.image_size if fixed else None, size,
             f"has positions for {spec.height} x {spec.width} pixels, not {self.image_size}"),
            (self.num_heads, num_heads,
             f"has {num_heads or 'no'} attention heads, not {self.num_heads}"),
            (self.pre_norm, pre_norm,
             f"has its norms {'before' if pre_norm else 'behind'} the attention"),
        ):  # fmt: skip
            if hint not in (None, fact):
                raise CheckpointError(f"{name} {reason}")


NO_HINTS = Hints()


def read_color(text: str) -> Colour | None:
    """Returns red, green and blue, 0 to 255; None for `NO_PADDING`. Raises CheckpointError."""
    if text == NO_PADDING:
        return None
    try:
        red, green, blue, *alpha = ImageColor.getrgb(text)
        if alpha:
            raise ValueError(text)
    except ValueError as error:
        raise CheckpointError(
            f"--pad must be a colour such as white or #ffffff, or {NO_PADDING}; it is {text!r:.80}"
        ) from error
    return red, green, blue


def _to_triple(text: str, *, least: float) -> Triple:
    try:
        red, green, blue = map(float, text.split(","))
    except ValueError:
        red = green = blue = -1.0
    if not all(least <= value <= 1 for value in (red, green, blue)):
        raise argparse.ArgumentTypeError(
            "must be R,G,B of pixels from 0 to 1 (divide those of 0 to 255 by 255), such as "
            f"0.485,0.456,0.406; it is {text!r:.80}"
        )
    return red, green, blue


def add_hint_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `Hints` that do not concern open labels."""
    add = parser.add_argument
    add("--backbone", help="timm name, if the checkpoint has none")
    add("--image-size", type=int, help="height and width of photos in pixels, if not the file's")
    add("--num-heads", type=int, help="attention heads, if not 8 (ML-Decoder) or 4 (Query2Label)")
    add("--pre-norm", action=argparse.BooleanOptionalAction, help="Query2Label's norms are before "
        "the attention, if the file has no encoder to show it")  # fmt: skip
    add("--prefix-tokens", choices=get_args(PrefixTokens), help="whether the head was trained on "
        "all tokens of a ViT, or without its class and register tokens")  # fmt: skip
    add("--features", choices=get_args(Features), help="whether the head was trained on "
        "backbone(images) or on backbone.forward_features(images)")  # fmt: skip
    add("--crop", action="store_true", help="see the centre of photos (default: all, squashed)")
    add("--pad", metavar="COLOUR", help="squares of this colour around photos; none: squash them")
    add("--channels", choices=get_args(Channels), help="colours' order in training (default: rgb)")
    mean, std = (partial(_to_triple, least=least) for least in (0.0, 1e-4))
    add(
        "--mean",
        type=mean,
        metavar="R,G,B",
        help="mean of pixels 0 to 1, also for BGR",
    )
    add("--std", type=std, metavar="R,G,B", help="standard deviation of pixels 0 to 1")
    add("--interpolation", choices=get_args(Interpolation), help="filter that resizes photos")
    add("--plain-pixels", action="store_true", help="trained without mean and std")
    add("--single-label", action="store_true", help="one label a photo: scores are a softmax")


def read_hints(given: argparse.Namespace) -> Hints:
    """Returns the hints among parsed options."""
    names = {field.name for field in fields(Hints)}
    return Hints(**{name: value for name, value in vars(given).items() if name in names})


@dataclass(frozen=True)
class Description:
    """Facts that a foreign checkpoint gives, in its file or in `config.json`."""

    architecture: str | None = None  # as its authors name it
    label_names: tuple[str, ...] | None = None  # N names
    # Of photos, by timm's names: `input_size`, `img_size`, `mean`, `std`, `interpolation`; the
    # architecture's own if missing or None.
    preparation: Mapping[str, object] = field(default_factory=dict)
    model_args: Mapping[str, ModelArgument] = field(default_factory=dict)  # of timm, unchecked
    photos: InputConfig | None = None  # the whole preparation; replaces `preparation`
    is_tagger: bool = False  # of the community's, whose photos are often padded, or BGR

    def complete(self, other: Description) -> Description:
        """Fills missing facts from another description."""
        return Description(
            self.architecture or other.architecture,
            self.label_names or other.label_names,
            {**other.preparation, **self.preparation},
            {**other.model_args, **self.model_args},
            photos=self.photos or other.photos,
            is_tagger=self.is_tagger or other.is_tagger,
        )


@dataclass(frozen=True)
class Weights:
    """A whole network, or a head alone, under our names: the result of every layout reader."""

    state: State
    config: NetworkConfig | HeadConfig
    label_names: tuple[str, ...] | None  # N names, or None if the file has none
    notes: Mapping[str, str] = field(default_factory=dict)  # on the training, free text by key
    # Images [B, 3, H, W] and their logits [B, N] by the file's own model, to compare with.
    example: tuple[Tensor, Tensor] | None = None

    def put_on(self, body: State, **network: object) -> Weights:
        """Joins a head with a backbone, under the names of its model, and its configuration."""
        state = {f"backbone.body.{key}": tensor for key, tensor in body.items()}
        state |= {f"head.{key}": tensor for key, tensor in self.state.items()}
        config = NetworkConfig.model_validate({"head": self.config, **network})
        return replace(self, state=state, config=config)


def first_reason(error: Exception) -> str:
    """Returns the message of an error; of pydantic's the first one, with its fields."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    return "".join(f"{part}: " for part in first["loc"]) + first["msg"]


def read_names(names: object) -> tuple[str, ...] | None:
    """Returns names in the order of their numbers; None if these are not 0 to N - 1."""
    if isinstance(names, list | tuple):
        names = dict(enumerate(names))
    if not isinstance(names, Mapping):
        return None
    numbered = {str(number): str(name) for number, name in names.items()}
    numbers = [str(number) for number in range(len(names))]
    return tuple(numbered[n] for n in numbers) if numbered.keys() == set(numbers) else None
