"""The teacher: an untouched pretrained backbone with its own ImageNet classifier.

In: a timm name. Out: a `Teacher`, which says of every photo which of a thousand names it shows.
It is ConSE's classifier as the baseline, and `train_open` distils it into the open head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from timm import get_pretrained_cfg
from timm.data import ImageNetInfo
from torch import Tensor, nn

from models.backbones.backbone import Backbone, create_timm
from models.checkpoints.pretrained import PretrainedError, fill_backbone, read_pretrained

_IMAGENET_CLASSES = 1000
_TOLERANCE = 1e-2  # of the logits' deviation


@dataclass(frozen=True, eq=False)
class Teacher:
    """A classifier with names.

    Attributes:
        backbone: normalised images float [B, 3, H, W] -> tokens [B, S, C]; in eval mode.
        classifier: pooled tokens [B, C] -> logits [B, P]; in eval mode.
        names: P names in the order of the logits.
    """

    backbone: Backbone
    classifier: nn.Linear
    names: tuple[str, ...]

    def classify(self, tokens: Tensor) -> Tensor:
        """Maps the teacher's own tokens float [B, S, C] to logits [B, P]."""
        logits: Tensor = self.classifier(tokens.mean(dim=1))
        return logits


def load_teacher(name: str, image_size: tuple[int, int]) -> Teacher:
    """Builds a backbone with ImageNet weights and the linear classifier that came with them.

    Args:
        name: timm name of a backbone whose classifier is linear over the mean of its tokens,
            as in EfficientNets and ResNets.
        image_size: (H, W) in pixels.

    Raises:
        PretrainedError: there are no such weights, or no such classifier among them, or the
            network does more between its tokens and the classifier than take their mean.
        BackboneError: timm knows no such backbone.
    """
    state = read_pretrained(name)
    backbone = Backbone(name, image_size)
    config = get_pretrained_cfg(name)
    key = "" if config is None else str(config.classifier)
    weight, bias = state.get(f"{key}.weight"), state.get(f"{key}.bias")
    if weight is None or bias is None or weight.shape != (_IMAGENET_CLASSES, backbone.width):
        raise PretrainedError(f"{name} has no linear classifier of ImageNet's names")
    classifier = nn.Linear(backbone.width, _IMAGENET_CLASSES)
    classifier.load_state_dict({"weight": weight, "bias": bias})
    fill_backbone(backbone, state)
    teacher = Teacher(
        backbone.eval().requires_grad_(False),
        classifier.eval().requires_grad_(False),
        read_imagenet_names(),
    )
    whole = create_timm(name, image_size, {})
    whole.load_state_dict(state)
    _check_agreement(teacher, whole.eval(), image_size)
    return teacher


@torch.inference_mode()
def _check_agreement(teacher: Teacher, whole: nn.Module, image_size: tuple[int, int]) -> None:
    """Refuses norms, class tokens and the like that `classify` would leave out."""
    image = torch.randn(1, 3, *image_size, generator=torch.Generator().manual_seed(0))
    wanted, found = whole(image), teacher.classify(teacher.backbone(image))
    if not torch.allclose(found, wanted, rtol=0, atol=_TOLERANCE * float(wanted.std())):
        raise PretrainedError(
            f"{teacher.backbone.name} classifies by more than the mean of its tokens: "
            "EfficientNets and ResNets can teach"
        )


def read_imagenet_names() -> tuple[str, ...]:
    """Returns ImageNet's 1,000 names in the order of its classes, the first of each's synonyms."""
    info = ImageNetInfo("imagenet-1k")
    return tuple(info.index_to_description(i).split(",")[0] for i in range(_IMAGENET_CLASSES))


def share_stages(student: Backbone, teacher: Backbone) -> tuple[nn.Module, nn.Module, nn.Module]:
    """Cuts two backbones of one architecture behind the leading stages that are the same.

    Args:
        student: a fine-tuned copy of `teacher`.
        teacher: the untouched backbone.

    Returns:
        (images -> features, features -> the student's tokens, features -> the teacher's);
        where nothing is shared, the features are the images.
    """
    count = next(
        stages
        for stages in range(student.num_stages, -1, -1)
        if _equal(student.split(stages)[0], teacher.split(stages)[0])
    )
    shared, own = student.split(count)
    return shared, own, teacher.split(count)[1]


def _equal(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    # An averaged checkpoint differs in the last bits of what was never trained.
    return all(torch.allclose(a.double(), b.double(), rtol=1e-5, atol=1e-7) for a, b in pairs)
