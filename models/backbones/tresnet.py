"""The TResNets that timm lacks, of ML-Decoder's authors and of ML-Danbooru, from timm's blocks."""

import torch
from timm.layers import ConvNormAct
from timm.models.tresnet import Bottleneck, TResNet
from torch import Tensor, nn

# The XL of ML-Decoder's authors; timm's `tresnet_xl` is an older, wider network.
TRESNET_V2_XL = "tresnet_v2_xl"
TRESNET_D = "tresnet_d"  # 7eu7d7/ML-Danbooru, with FReLU as activation
_LAYERS = {TRESNET_V2_XL: [3, 8, 34, 5], TRESNET_D: [3, 6, 14, 3]}  # blocks of the four stages
NAMES = tuple(_LAYERS)


class FReLU(nn.Module):
    """max(x, funnel(x)), where the funnel is a normalised depthwise convolution (2007.11824)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Maps features [B, C, H, W] to features of the same shape."""
        return torch.maximum(x, self.bn(self.conv(x)))


def create_tresnet(name: str) -> TResNet:
    """Builds one of `NAMES` without classifier and pooling, with random weights."""
    body = TResNet(_LAYERS[name], num_classes=0, v2=True, global_pool="")
    if name == TRESNET_D:
        for module in list(body.modules()):
            if isinstance(module, Bottleneck):
                module.add_module("act", FReLU(module.conv3.out_channels))
            elif isinstance(module, ConvNormAct) and not isinstance(module.bn.act, nn.Identity):
                module.bn.add_module("act", FReLU(module.out_channels))
    return body
