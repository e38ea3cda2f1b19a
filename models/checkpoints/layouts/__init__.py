"""Foreign checkpoint layouts: other projects' key names, brought to this project's.

In: what `torch.load` gave. Out: a `ForeignState`: our key names, and the configuration read
off the tensors. `reader.py` recognises the layout; `ml_decoder.py` and `query2label.py`
translate heads, `backbones.py` backbones. Next: `checkpoints.py` builds the network.
"""

from models.checkpoints.layouts.reader import read_bare_backbone, read_foreign
from models.checkpoints.layouts.state import (
    CheckpointError,
    Content,
    Description,
    ForeignState,
    Hints,
)

__all__ = [
    "CheckpointError",
    "Content",
    "Description",
    "ForeignState",
    "Hints",
    "read_bare_backbone",
    "read_foreign",
]
