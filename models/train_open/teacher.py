"""Sources of an open head: encoder, text encoder, and the pretrained backbone as its teacher."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from models.backbones.backbone import Backbone
from models.checkpoints.checkpoint import read_checkpoint
from models.checkpoints.description import CheckpointError
from models.checkpoints.pretrained import fill_backbone, read_pretrained
from models.config import InputConfig
from models.text import TextEncoder
from models.timm_model import classifier_names, create_timm, read_class_names

_IMAGENET_CLASSES = 1000
_TOLERANCE = 1e-2  # of the logits' deviation


@dataclass(frozen=True, eq=False)
class Teacher:
    """A backbone with a classifier of P names over its pooled tokens, in eval mode."""

    backbone: Backbone
    classifier: nn.Linear
    names: tuple[str, ...]

    def classify(self, tokens: Tensor) -> Tensor:
        """Maps the teacher's own tokens float [B, S, C] to logits [B, P]."""
        return self.classifier(tokens.mean(dim=1))


@dataclass(frozen=True, eq=False)
class Sources:
    """Inputs of an open head's training."""

    encoder: Backbone
    prepared: InputConfig
    head: nn.Module  # trained with the encoder: tokens [B, S, C] -> logits [B, N]
    label_names: tuple[str, ...]  # of the head; empty if the checkpoint has none
    teacher: Teacher
    text: TextEncoder


def read_sources(checkpoint: Path, text: TextEncoder) -> Sources:
    """Reads a checkpoint's encoder and builds the teacher of the same architecture."""
    stored = read_checkpoint(checkpoint)
    network = stored.take_network()
    spec = network.config.input
    teacher = load_teacher(network.config.backbone, (spec.height, spec.width))
    return Sources(network.backbone, spec, network.head, stored.label_names or (), teacher, text)


def load_teacher(name: str, image_size: tuple[int, int]) -> Teacher:
    """Builds a backbone with ImageNet weights and the linear classifier that came with them."""
    state = read_pretrained(name)
    backbone = Backbone(name, image_size)
    key = next(iter(classifier_names(name)), "")
    weight, bias = state.get(f"{key}.weight"), state.get(f"{key}.bias")
    if weight is None or bias is None or weight.shape != (_IMAGENET_CLASSES, backbone.width):
        raise CheckpointError(f"{name} has no linear classifier of ImageNet's names")
    classifier = nn.Linear(backbone.width, _IMAGENET_CLASSES)
    classifier.load_state_dict({"weight": weight, "bias": bias})
    fill_backbone(backbone, state)
    teacher = Teacher(
        backbone.eval().requires_grad_(False),
        classifier.eval().requires_grad_(False),
        read_class_names("imagenet-1k"),
    )
    whole = create_timm(name, image_size, {})
    whole.load_state_dict(state)
    _check_agreement(teacher, whole.eval(), image_size)
    return teacher


@torch.inference_mode()
def _check_agreement(teacher: Teacher, whole: nn.Module, image_size: tuple[int, int]) -> None:
    """Raises CheckpointError for norms, class tokens and the like, which `classify` omits."""
    image = torch.randn(1, 3, *image_size, generator=torch.Generator().manual_seed(0))
    wanted, logits = whole(image), teacher.classify(teacher.backbone(image))
    if not torch.allclose(logits, wanted, rtol=0, atol=_TOLERANCE * float(wanted.std())):
        raise CheckpointError(
            f"{teacher.backbone.name} classifies by more than the mean of its tokens: use an "
            "EfficientNet or a ResNet"
        )


def share_stages(student: Backbone, teacher: Backbone) -> tuple[nn.Module, nn.Module, nn.Module]:
    """Cuts a backbone and its fine-tuned copy after the leading stages that are equal.

    Returns (images -> features, features -> the student's tokens, features -> the teacher's); the
    features are the images if no stage is equal.
    """
    count = next(
        stages
        for stages in range(student.num_stages, -1, -1)
        if _equal(student.split(stages)[0], teacher.split(stages)[0])
    )
    shared, students = student.split(count)
    return shared, students, teacher.split(count)[1]


def _equal(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    # Averaging checkpoints changes the last bits of weights that were never trained.
    return all(torch.allclose(a.double(), b.double(), rtol=1e-5, atol=1e-7) for a, b in pairs)
