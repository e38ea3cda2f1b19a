"""Table of layouts that are not supported: patterns, a name and a remedy for the error."""

import re
from collections.abc import Iterable

from models.checkpoints.description import CheckpointError

# (patterns, description, remedy); all patterns must match a tensor's name or a pickled class.
_UNSUPPORTED = (
    (r"\._packed_params\b|\.(SCB|absmax|quant_(map|state\.\w+)|qweight|qzeros|g_idx)$"
     r"|\.weight_(packed|scale)$", "quantised weights", "give the weights from before that"),
    (r"\.lora_(A|B|down|up)\.", "adapters (LoRA)", "merge them into the network's weights"),
    (r"(^|\.)((pixel|image)_)?(mean|std)$", "mean and std of photos inside its network", "store "
     "the weights without them, and give --mean and --std"),
    (r"\bpos\w*_encod|\binv_freq$", "a network that adds positions to the tokens of its backbone",
     "a head must take the tokens as they are"),
    (r"^(model\.)*\d+\.(conv|cv\d|m)\.|(^|\.)(rpn|roi_heads?|bbox_head)\.|^ultralytics\.",
     "a detector, such as YOLO", "it is no tagger"),
    (r"(^|\.)(vision_model\.(embeddings|encoder)|visual\.(transformer|trunk|conv1))\.",
     "a CLIP or SigLIP", "give the folder of a model with both towers"),
    (r"\bembeddings\.patch_embeddings\.projection\."
     r"|\bencoder\.stages\.\d+\.layers\.\d+\.(dwconv|layer\.\d+\.convolution)\."  # transformers
     r"|\bbackbone\.(layers\.\d+\.(ln1|ffn)|stages\.\d+\.\d+\.depthwise_conv)\."  # mmpretrain
     r"|\bbackbone\.stages\.\d+\.blocks\.\d+\.attn\.w_msa\."
     r"|(^|\.)encoder\.layers\.encoder_layer_\d+\."  # torchvision
     r"|(^|\.)features\.\d+\.(\d+\.(block|attn)|(block|conv)\.\d+)\."
     r"|(^|\.)_blocks\.\d+\._|[/.](kernel|moving_mean)(:\d+)?$",
     "a network of transformers, mmpretrain, torchvision, efficientnet_pytorch, Keras or JAX",
     "a classifier must be in the layout of timm, as timm.create_model builds it; of torchvision, "
     "ResNets and DenseNets are read, of mmpretrain ResNets"),
    (r"(^|\.)blocks\.\d+\.skip_init1\.", "JoyTag, a ViT of its own",
     "give a tagger in the layout of timm, such as WD v3"),
    (r"(^|\.)feats_trans\.\d+\.", "ML-Danbooru's CAFormer, whose decoder reads several stages",
     "give its authors' TResNet-D (TResnet-D-FLq_ema_*.ckpt), or animetimm's CAFormer"),
    (r"(^|\.)attn_pool\.latent$ (^|\.)head\.linear\.weight$",
     "JTP PILOT2, whose head multiplies two sigmoids of a tag", "give the first JTP PILOT"),
)  # fmt: skip


def refuse_unsupported(names: Iterable[str]) -> None:
    """Raises CheckpointError for keys, or names of pickled classes, of files that are not read."""
    names = list(names)
    for patterns, what, remedy in _UNSUPPORTED:
        matches = [next(filter(re.compile(p).search, names), None) for p in patterns.split()]
        if None not in matches:
            raise CheckpointError(
                f"the file has {what} ({matches[0]}), which cannot be read: {remedy}"
            )
