"""A recipe's network before training: a fresh head, and the weights that `--init` gives."""

from torch import nn

from models.backbones.backbone import Backbone, input_config
from models.checkpoints.checkpoint import read_checkpoint
from models.checkpoints.description import CheckpointError, Description, Hints
from models.checkpoints.files import CheckpointFile
from models.checkpoints.layouts.backbones import take_pooled_norm
from models.checkpoints.layouts.state import fill
from models.checkpoints.layouts.translate import read_bare_backbone
from models.checkpoints.preparation import TAGS
from models.checkpoints.pretrained import load_pretrained
from models.config import GapConfig, InputConfig, MLDecoderConfig, NetworkConfig
from models.data.records import LabelledFolder
from models.network import Network
from models.timm_model import BackboneError
from models.train.recipe import WHOLE_BACKBONE, Recipe

# Prefixes of the pooling and the classifiers that timm and TResNet's authors put on a backbone.
_CLASSIFIERS = (
    "attn_pool.", "aux_head.", "classifier.", "fc.", "fc_norm.", "head.", "head_dist.",
)  # fmt: skip
# Parts of the preparation that come with the weights; the image size is the recipe's.
_PIXELS = ("mean", "std", "interpolation")
_PADDING = ("resize_mode", "pad_color", "fit_size", "fit_interpolation")


def build_network(recipe: Recipe, data: LabelledFolder, pretrained: bool) -> Network:
    """Builds the recipe's network with a fresh head for the labels of a data set."""
    size = (recipe.image_size, recipe.image_size)
    backbone = Backbone(recipe.backbone, size)
    for side in (recipe.image_size, recipe.crop_size):
        backbone.count_tokens((side, side))  # refuses a size that the backbone does not take
    if backbone.num_stages == 1 and 0 < recipe.frozen_stages < WHOLE_BACKBONE:
        raise BackboneError(
            f"{backbone.name} cannot be cut between stages, only EfficientNets and the like can: "
            f"give --frozen-stages {WHOLE_BACKBONE} (all of it) or 0 (none)"
        )
    facts = {"num_classes": len(data.label_names), "encoder_width": backbone.width}
    kind = MLDecoderConfig if recipe.head == "ml_decoder" else GapConfig
    fields = {k: v for k, v in (recipe.model_dump() | facts).items() if k in kind.model_fields}
    spec, head = input_config(recipe.backbone, size), kind.model_validate(fields)
    network = Network(NetworkConfig(backbone=recipe.backbone, input=spec, head=head))
    if pretrained:
        load_pretrained(network.backbone)
    return network


def start_from(network: Network, init: CheckpointFile) -> str:
    """Loads a checkpoint's backbone and pixels, and its head if both heads are built alike.

    The file may be a backbone alone. Returns a description of the loaded parts.
    """
    name = network.config.backbone
    bare = read_bare_backbone(init)
    if bare is not None:
        state, described = bare
        if described.is_tagger and described.photos is None:
            raise CheckpointError(
                f"{init.name} is in a folder with {TAGS}, and may take BGR (WD taggers do), which "
                "training does not know: move it to a folder of its own if it takes RGB"
            )
        body = network.backbone.body
        tensors = body.state_dict()
        whole = take_pooled_norm(state, tensors)
        kept = {k: v for k, v in whole.items() if k in tensors or not k.startswith(_CLASSIFIERS)}
        fill(body, kept)
        return "its backbone" + _take_pixels(network, _read_pixels(network, described))
    start = read_checkpoint(init, Hints(name, prefix_tokens="drop", features="forward_features"))
    trained = start.take_network()
    fill(network.backbone, trained.backbone.state_dict())
    pixels = _take_pixels(network, trained.config.input)
    if _describe(trained.head) != _describe(network.head):
        return f"its backbone{pixels}; its head is built differently"
    network.head.load_state_dict(trained.head.state_dict())
    return f"its backbone and its head{pixels}"


def _read_pixels(network: Network, described: Description) -> InputConfig:
    if described.photos is not None:
        return described.photos
    given = {name: value for name in _PIXELS if (value := described.preparation.get(name))}
    current = network.config.input
    if not given:
        return current
    return input_config(network.config.backbone, (current.height, current.width), given)


def _take_pixels(network: Network, source: InputConfig) -> str:
    """Returns a description of the change; empty if there is none."""
    current = network.config.input
    names = (*_PIXELS, *_PADDING) if source.resize_mode == "pad" else _PIXELS
    taken = current.model_copy(update={name: getattr(source, name) for name in names})
    if taken == current:
        return ""
    network.config = network.config.model_copy(update={"input": taken})
    pixels = f", its mean {taken.mean}, std {taken.std} and {taken.interpolation} interpolation"
    return f", its padding{pixels}" if taken.resize_mode == "pad" else pixels


def _describe(head: nn.Module) -> tuple[object, ...]:
    """Returns the facts that must be equal for one head to take the weights of another."""
    shapes = {key: tuple(tensor.shape) for key, tensor in head.state_dict().items()}
    return shapes, *(getattr(head.config, name, None) for name in ("num_heads", "pre_norm"))
