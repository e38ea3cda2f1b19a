"""Networks of a stranger's configuration, whose sizes are checked before memory is allocated."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from models.commands import RequestError

# Parameters that any network may have: timm's largest has 1,700, and 10,000 take 1 s to build.
_MAX_PARAMETERS = 10_000

Module = TypeVar("Module", bound=nn.Module)


def build_checked(
    build: Callable[[], Module],
    state: Mapping[str, Tensor],
    fill: Callable[[nn.Module, Mapping[str, Tensor]], object],
) -> Module:
    """Builds and fills a module, first on the meta device, where sizes take no memory.

    Raises what `fill` raises, and RequestError for more layers than tensors.
    """
    most, count = max(_MAX_PARAMETERS, 4 * len(state)), 0

    def limit(_: nn.Module, __: str, parameter: nn.Parameter | None) -> None:
        nonlocal count
        count += parameter is not None and parameter.is_meta
        if count > most:
            raise RequestError(
                f"the configuration has more layers than the file has tensors, {len(state)}: give "
                "the configuration of this file"
            )

    with register_module_parameter_registration_hook(limit), torch.device("meta"):
        fill(build(), {key: tensor.to("meta") for key, tensor in state.items()})
    module = build()
    fill(module, state)
    return module
