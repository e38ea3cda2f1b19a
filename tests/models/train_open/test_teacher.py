"""A teacher equals timm's own network, or is refused."""

from collections.abc import Callable

import pytest
import timm
import torch
from torch import Tensor

from models.checkpoints.description import CheckpointError
from models.train_open import teacher
from models.train_open.teacher import load_teacher


def random_weights(seed: int) -> Callable[[str], dict[str, Tensor]]:
    """Returns a source of weights in which no norm is the identity, as none is in trained ones."""

    def read(name: str) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        state: dict[str, Tensor] = timm.create_model(name).state_dict()
        for key, tensor in state.items():
            if tensor.dim() == 1 and not key.endswith("running_mean"):
                tensor.uniform_(0.3, 2)
        return state

    return read


@pytest.mark.parametrize("name", ["test_efficientnet", "test_resnet"])
def test_teacher_equals_timms_network(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teacher, "read_pretrained", random_weights(0))
    loaded = load_teacher(name, (64, 96))
    whole = timm.create_model(name).eval()
    whole.load_state_dict(random_weights(0)(name))
    images = torch.randn(2, 3, 64, 96)
    with torch.inference_mode():
        torch.testing.assert_close(
            loaded.classify(loaded.backbone(images)), whole(images), rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("name", ["test_convnext", "test_vit"])
def test_network_with_more_than_a_mean_before_its_classifier_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teacher, "read_pretrained", random_weights(0))
    with pytest.raises(CheckpointError, match=f"{name} classifies by more than the mean"):
        load_teacher(name, (160, 160))
    with pytest.raises(CheckpointError, match=r"weights for test_vit do not fit: .*pos_embed"):
        load_teacher("test_vit", (96, 96))
    assert load_teacher("test_resnet", (64, 64)).names
