"""What the tests of networks share."""

from typing import TypeVar

import torch

Module = TypeVar("Module", bound=torch.nn.Module)


def shake(module: Module, size: float = 0.3) -> Module:
    """Moves biases and gains: zeros and ones would hide mistakes."""
    for parameter in module.parameters():
        if parameter.dim() == 1:
            parameter.data += size * torch.randn_like(parameter)
    return module
