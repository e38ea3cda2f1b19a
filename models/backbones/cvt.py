"""CvT, the one backbone of Query2Label that timm does not have, built on transformers' layers."""

from typing import Any

from torch import Tensor, nn

STRIDE = 16  # pixels of a token

# Widths, heads and depths of the three stages (arXiv 2103.15808, table 1).
_STAGES: dict[str, dict[str, Any]] = {
    "cvt_13": {"embed_dim": [64, 192, 384], "num_heads": [1, 3, 6], "depth": [1, 2, 10]},
    "cvt_w24": {"embed_dim": [192, 768, 1024], "num_heads": [3, 12, 16], "depth": [2, 2, 20]},
}
CVTS = tuple(_STAGES)


class Cvt(nn.Module):
    """CvT without its classifier; `name` is one of `CVTS`.

    As in the authors' code (microsoft/CvT, cls_cvt.py), the activation is the quick approximation
    of GELU, and the last norm is each position's. No published weights were compared.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        # Imported here: it takes seconds, and few networks need it.
        from transformers import CvtConfig, CvtModel
        from transformers.activations import ACT2FN

        config = CvtConfig(**_STAGES[name])
        self.model = CvtModel(config)
        stages: Any = self.model.encoder.stages
        for stage in stages:
            for layer in stage.layers:
                layer.intermediate.activation = ACT2FN["quick_gelu"]
        self.num_features = int(config.embed_dim[-1])
        self.norm = nn.LayerNorm(self.num_features)

    def forward_features(self, images: Tensor) -> Tensor:
        """Encodes normalised images [B, 3, H, W] to features [B, C, H / 16, W / 16]."""
        features: Tensor = self.model(images).last_hidden_state
        return self.norm(features.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
