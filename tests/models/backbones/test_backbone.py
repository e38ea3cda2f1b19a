"""Backbones: every kind of timm model gives tokens; splitting changes nothing."""

import pytest
import torch

from models.backbones.backbone import Backbone, BackboneError, input_config


@pytest.mark.parametrize(
    ("name", "size", "tokens"),
    [
        ("test_efficientnet", (64, 96), 2 * 3),
        ("test_resnet", (64, 96), 2 * 3),
        ("test_vit", (160, 160), 10 * 10),  # class token left out
        ("volo_d1_224", (64, 64), 4 * 4),  # and one that timm does not count
        ("coat_lite_tiny", (224, 224), 7 * 7),  # nor that one's
        ("swin_tiny_patch4_window7_224", (224, 224), 7 * 7),  # channels last
        ("mobilenetv3_small_050", (64, 64), 2 * 2),
        ("efficientvit_b0", (64, 64), 2 * 2),  # cannot be built without its pooling
    ],
)
def test_tokens_have_the_width_the_backbone_names(
    name: str, size: tuple[int, int], tokens: int
) -> None:
    backbone = Backbone(name, size).eval()
    with torch.inference_mode():
        out = backbone(torch.randn(2, 3, *size))
    assert out.shape == (2, tokens, backbone.width)
    assert backbone.count_tokens(size) == tokens


def test_tokens_of_a_feature_map_keep_row_order() -> None:
    backbone, images = Backbone("test_efficientnet", (64, 96)).eval(), torch.randn(1, 3, 64, 96)
    with torch.inference_mode():
        features = backbone.body.forward_features(images)  # type: ignore[operator]
        torch.testing.assert_close(backbone(images)[0, 4], features[0, :, 1, 1])


@pytest.mark.parametrize("stages", [0, 1, 3, 99])
def test_halves_of_a_split_equal_the_whole_and_share_its_parameters(stages: int) -> None:
    backbone = Backbone("test_efficientnet", (64, 64)).eval()
    first, second = backbone.split(stages)
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(second(first(images)), backbone(images), rtol=0, atol=0)
    halves = {id(p) for half in (first, second) for p in half.parameters()}
    assert halves <= {id(p) for p in backbone.parameters()}
    assert (sum(1 for _ in first.parameters()) > 0) == (stages > 0)


def test_backbone_without_stages_is_frozen_whole_or_not_at_all() -> None:
    backbone = Backbone("test_vit")
    assert backbone.split(1)[0] is backbone
    assert backbone.split(0)[1] is backbone


@pytest.mark.parametrize(
    ("name", "size", "reason"),
    [
        ("resnet5000", None, "no model named 'resnet5000'"),
        ("pit_ti_224", None, "pit_ti_224 gives no map of features, only class tokens"),
        ("pit_ti_distilled_224", None, "distilled_224 gives no map of features, only class tokens"),
        ("xcit_nano_12_p16_224", (230, 230), "cannot build xcit_nano_12_p16_224 for 230 x 230"),
    ],
)
def test_backbone_is_refused_when_timm_cannot_build_it(
    name: str, size: tuple[int, int] | None, reason: str
) -> None:
    with pytest.raises(BackboneError, match=reason):
        Backbone(name, size)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("coat_tiny", (224, 224)),  # several maps
        ("levit_128s", (192, 192)),  # bound to another size
        ("tresnet_m", (230, 230)),  # takes multiples of 4
    ],
)
def test_count_tokens_refuses_a_size_without_a_map_of_features(
    name: str, size: tuple[int, int]
) -> None:
    with pytest.raises(BackboneError, match=f"{name} gives no map of features of {size[0]} x"):
        Backbone(name, (224, 224)).count_tokens(size)


def test_given_preparation_overrides_the_models_own() -> None:
    given = {"img_size": 288, "mean": [0.5], "std": (0.1, 0.2, 0.3), "interpolation": "lanczos"}
    spec = input_config("resnet50", None, given)
    assert (spec.height, spec.width, spec.interpolation) == (288, 288, "lanczos")
    assert (spec.mean, spec.std) == ((0.5, 0.5, 0.5), (0.1, 0.2, 0.3))
    assert input_config("resnet50", (64, 96), given).width == 96
    with pytest.raises(BackboneError, match="the preparation of photos for resnet50 is invalid"):
        input_config("resnet50", None, {"mean": "grey"})
    with pytest.raises(BackboneError, match="no model named"):
        input_config("resnet5000")
