"""Arguments of timm's models that come from a stranger's file."""

import re

import pytest

from models.config import ModelArgument
from models.timm_model import BackboneError, create_timm


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        *(("test_vit", {key: "x"}, f"have {key}, which is no argument of test_vit") for key in (
            "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "kwargs",
            "cache_dir", "features_only", "scriptable", "num_classes", "in_chans", "img_size",
        )),
        ("caformer_s18", {"other": 1}, "have other, which is no argument"),  # it takes any keyword
        ("test_vit", {"act_layer": "glue"}, "cannot build test_vit with act_layer='glue': 'glue'"),
        ("test_vit", {"norm_layer": 3}, "cannot build test_vit with norm_layer=3: "),
        ("test_vit", {"depth": 10**9}, "have depth=1000000000: too large"),
        ("mixer_s32_224", {"num_blocks": 10000}, "have num_blocks=10000: too large"),
        ("local-dir:/tmp", {}, "timm has no model named 'local-dir:/tmp'"),
        ("hf-hub:owner/name", {}, "timm has no model named 'hf-hub:owner/name'"),
        ("test_vit", {"mlp_ratio": float("nan")}, "have mlp_ratio=nan: too large"),
        ("test_resnet", {"layers": (9000, 9000)}, r"have layers=\(9000, 9000\): too large"),
        ("test_vit", {"embed_dim": 15360, "mlp_ratio": 4000.0}, "has .* and tables: too large"),
        ("vit_7b_patch16_dinov3", {}, r"has 26\.9 GB of weights and tables: too large"),
    ],
)  # fmt: skip
def test_other_argument_is_refused_by_name(
    name: str, arguments: dict[str, ModelArgument], reason: str
) -> None:
    with pytest.raises(BackboneError, match=reason) as refused:
        create_timm(name, None, {"num_classes": 3}, arguments)
    assert not re.search("\n", str(refused.value))
