"""Unwraps the tensors of a foreign file, reads its description and renames tensors."""

import argparse
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NoReturn, cast

from torch import Tensor, nn

from models.checkpoints.description import CheckpointError, Description, State, read_names
from models.checkpoints.layouts.unsupported import refuse_unsupported
from models.checkpoints.pickles import Unread
from models.meta import Module, build_checked

# Where training code puts the weights of a file: averaged ones (EMA, SWA), which are preferred.
_AVERAGED = (
    *("ema", "model_ema_state_dict", "ema_state_dict", "state_dict_ema", "model_ema", "ema_model"),
    *("params_ema", "net_ema", "ema_net", "averaged_model", "swa_model", "swa_state_dict"),
)
_LAST = (
    *("model", "state_dict", "model_state_dict", "model_state", "net", "network", "params"),
    *("weights", "module"),
)
# Other names of averaged weights, whose format is unknown.
_OTHER_AVERAGES = re.compile(r"(?i:(?<![a-z])(ema|swa|avg)(?![a-z])|averag)|EMA|SWA")
_INNER = ("module", "shadow", "state_dict", "ema_model", "model")  # a second wrapping
_PREFIXES = re.compile(  # of data-parallel, compiled and sharded networks
    r"^(module\.|_orig_mod\.)+|(?<=\.)_orig_mod\.|_(fsdp|checkpoint)_wrapped_module\.|_forward_module\."
)
# Options of timm's training script -> arguments of its models.
_OPTIONS = {"gp": "global_pool", "bn_eps": "bn_eps"}
LEAVES = ("weight", "bias")
_PACKED = re.compile(r"(?<![^.])in_proj_(weight|container\.q_proj\.weight)$")
COUNTERS = "num_batches_tracked"  # of batch norms; not used by the network
# Averages of torch and ema_pytorch count in tensors of their own.
_STEPS = {"n_averaged", "initted", "step"}
# Names of a loss's weights and of a metric's state; no model of timm has them.
_LOSS = re.compile(
    r"(.*\.)?((\w*_)?(loss(es)?|criteri(on|a))(_\w+)?|pos_weight|class_weights?)(\..+)?"
)
_METRIC = re.compile(
    r"(.*\.)?((\w*_)?metrics?(_\w+)?|(train|valid|val|test)_\w+|confmat|thresholds)(\..+)?"
)

logger = logging.getLogger(__name__)


def unwrap(content: object) -> tuple[State, Description]:
    """Finds the tensors: a bare state dict, or one under a name that training code uses.

    Returns them under their authors' names, and the file's description of itself. Raises
    CheckpointError if there are several networks, or if the weights are no plain tensors.
    """
    if not isinstance(content, Mapping):
        raise CheckpointError("the checkpoint is not a dictionary of tensors")
    inner = _find_tensors(content)
    for root in _AVERAGED:  # a module that has the averaged network in an attribute
        inner = _strip(take(inner, f"{root}.")) or inner
    inner = {key: value for key, value in inner.items() if key not in _STEPS}
    if not inner or not all(isinstance(value, Tensor) for value in inner.values()):
        _refuse(inner)
    return inner, _read_description(content)


def _refuse(content: Mapping[Any, Any]) -> NoReturn:
    others = {str(key): value for key, value in content.items() if not isinstance(value, Tensor)}
    pickled = {key: value.kind for key, value in others.items() if isinstance(value, Unread)}
    refuse_unsupported([*pickled.values(), *others])
    entries = [f"{key} (a pickled {pickled[key]})" if key in pickled else key for key in others]
    raise CheckpointError(
        "the checkpoint has entries that are no tensors under a usual name: "
        f"{', '.join(entries[:5]) or 'none'}; store only the weights, with "
        "torch.save(model.state_dict(), FILE)"
    )


def _read_description(content: Mapping[object, object]) -> Description:
    architecture, arguments = content.get("arch"), content.get("args")
    # Other scripts' arguments may mean something else by these names.
    from_timm = (
        isinstance(arguments, argparse.Namespace)
        and getattr(arguments, "model", "") == architecture
    )
    given = vars(arguments) if from_timm else {}
    options = {name: given.get(key) for key, name in _OPTIONS.items()}
    return Description(
        architecture if isinstance(architecture, str) else None,
        read_names(content.get("idx_to_class")),
        given,
        {k: v for k, v in (options | (given.get("model_kwargs") or {})).items() if v is not None},
    )


def _find_tensors(content: Mapping[object, object]) -> dict[str, Any]:
    states = {name: state for name in _LAST if (state := _open(content.get(name)))}
    if len(states) > 1:
        refuse_several(f"under {' and '.join(states)}")
    last = next(iter(states.values()), None)
    for name in _AVERAGED:
        value = content.get(name)
        averaged = _open(value)
        if averaged is not None:
            # Some averages have no statistics of batch norms.
            return {**last, **averaged} if last and averaged.keys() < last.keys() else averaged
        if value and isinstance(value, Mapping | Unread):  # a module, or a list without names
            _refuse({name: value})
    _refuse_other_averages(content)
    return _strip(content) if last is None else last


def _refuse_other_averages(content: Mapping[object, object]) -> None:
    """Refuses averaged weights that `_AVERAGED` does not have, also of Lightning's callbacks."""
    callbacks = content.get("callbacks")
    for values in (content, callbacks if isinstance(callbacks, Mapping) else {}):
        for name, value in values.items():
            if isinstance(value, Tensor):
                continue  # of a bare file; its names are looked at when it is unwrapped
            if _OTHER_AVERAGES.search(str(name)) and _has_weights(value):
                raise CheckpointError(
                    f"the checkpoint has averaged weights beside others ({name!s:.80}): store "
                    "only the tensors to serve, with torch.save(model.state_dict(), FILE)"
                )


def _has_weights(value: object) -> bool:
    level = [value]
    for _ in range(4):
        for item in level:
            if isinstance(item, Unread) or (isinstance(item, Tensor) and item.dim() > 1):
                return True
        # By identity: in a pickle of 5 kB, lists in lists can have one list 10 million times.
        level = list({id(inner): inner for item in level for inner in _list_items(item)}.values())
    return False


def _list_items(value: object) -> Iterable[object]:
    inner = value.values() if isinstance(value, Mapping) else value
    is_list = isinstance(inner, Iterable) and not isinstance(inner, str | bytes | Tensor)
    return cast("Iterable[object]", inner) if is_list else ()


def _open(value: object) -> dict[str, Any] | None:
    """Returns a dictionary with weights, perhaps wrapped once more; None for other values."""
    if not isinstance(value, Mapping):
        return None
    name = next((name for name in _INNER if isinstance(value.get(name), Mapping)), None)
    inner = value
    if name is not None:
        inner = value[name]
        _refuse_other_averages({key: other for key, other in value.items() if key != name})
    has_weights = any(isinstance(item, Tensor) and item.dim() > 1 for item in inner.values())
    return _strip(inner) if has_weights else None


def _strip(tensors: Mapping[Any, Any]) -> dict[str, Any]:
    stripped = {_PREFIXES.sub("", str(key)): value for key, value in tensors.items()}
    if len(stripped) < len(tensors):
        raise CheckpointError("the checkpoint has the same name with and without a prefix module.")
    return stripped


def leave_out_training(state: State) -> State:
    """Leaves out, and logs, the tensors of losses and metrics next to a network."""
    kept = {}
    for key, tensor in state.items():
        is_layer = tensor.is_floating_point() and tensor.dim() > 1  # not the counts of a metric
        if not (_LOSS.fullmatch(key) or (_METRIC.fullmatch(key) and not is_layer)):
            kept[key] = tensor
    log_left_out(state.keys() - kept.keys(), "a loss or a metric, not of the network")
    return kept


def log_left_out(keys: Collection[str], reason: str) -> None:
    """Logs tensors that the network does not use."""
    if keys:
        more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
        logger.info("left out %s%s: %s", min(keys), more, reason)


def refuse_others(keys: Iterable[str]) -> None:
    """Raises CheckpointError for tensors that are neither of a backbone nor of its head."""
    if others := sorted(keys):
        raise CheckpointError(
            f"the file has {others[0]} next to a backbone and a head: a network with other layers "
            "cannot be served"
        )


def refuse_several(networks: str) -> NoReturn:
    """Raises CheckpointError for a file with several networks; `networks` names two of them."""
    raise CheckpointError(
        f"the checkpoint has several networks, {networks}: store the tensors of the one to serve"
    )


def take(state: Mapping[str, Tensor], prefix: str) -> State:
    """Returns the tensors under a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def find_prefix(state: Collection[str], names: Sequence[str]) -> str | None:
    """Returns the prefix of a network's tensors `names`; None if the file lacks the first of them.

    Of several it has the most names, or is the shortest. Raises CheckpointError if two have all.
    """
    first = names[0]
    prefixes = sorted(
        (k.removesuffix(first) for k in state if f".{k}".endswith(f".{first}")), key=len
    )
    counts = {prefix: sum(f"{prefix}{name}" in state for name in names) for prefix in prefixes}
    whole = [prefix for prefix, count in counts.items() if count == len(names)]
    if len(whole) > 1:
        refuse_several(" and ".join(f"{prefix}*" for prefix in whole[:2]))
    return max(counts, key=counts.__getitem__, default=None)


def rename(state: Mapping[str, Tensor], names: Iterable[tuple[str, str]]) -> State:
    """Applies regular expressions and their replacements to each name, in their order."""
    renamed: State = {}
    for key, tensor in state.items():
        for pattern, replacement in names:
            key = re.sub(pattern, replacement, key)
        renamed[key] = tensor
    return renamed


def try_to_fill(module: nn.Module, state: Mapping[str, Tensor]) -> str | None:
    """Fills a module; returns a reason if names or shapes are not exactly its own.

    Counters of batch norms may be missing: frozen ones store none, and torch adds them. Raises
    CheckpointError for a tensor with numbers that are not finite.
    """
    try:
        module.load_state_dict(dict(state))
    except RuntimeError as error:
        # After a line with the module's class.
        return " ".join(str(error).splitlines()[1:2]).strip()[:300]
    for key, tensor in state.items():
        if not tensor.is_meta and not tensor.isfinite().all():
            raise CheckpointError(f"{key} has NaN or infinite numbers: give another checkpoint")
    return None


def build_filled(build: Callable[[], Module], state: Mapping[str, Tensor]) -> Module:
    """Builds a module and fills it, as `build_checked` and `fill` do."""
    return build_checked(build, state, fill)


def fill(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Fills a module as `try_to_fill` does; raises CheckpointError if the state is not its own."""
    for key, tensor in module.state_dict().items():
        if tensor.is_floating_point() and key in state and not state[key].is_floating_point():
            kind = str(state[key].dtype).removeprefix("torch.")
            raise CheckpointError(f"{key} has numbers of type {kind}: store float32")
    if reason := try_to_fill(module, state):
        raise CheckpointError(f"the checkpoint is not of this network: {reason}")


def unpack_attentions(state: Mapping[str, Tensor]) -> State:
    """Renames the tensors of torch's `MultiheadAttention` and of xFormers' `MultiHeadDispatch`.

    Torch packs the projections of query, key and value in one. Raises KeyError for missing tensors,
    and CheckpointError for others, such as `bias_k`, which change the result.
    """
    unpacked, prefixes = dict(state), {k[: m.start()] for k in state if (m := _PACKED.search(k))}
    for prefix in prefixes:
        packed = {key: unpacked.pop(key) for key in state if key.startswith(prefix)}
        apart = f"{prefix}in_proj_weight" not in packed
        for leaf in LEAVES:
            packs = [f"in_proj_container.{part}_proj.{leaf}" for part in "qkv"]
            packs, out = (packs, "proj") if apart else ([f"in_proj_{leaf}"], "out_proj")
            projections = [packed.pop(f"{prefix}{theirs}") for theirs in packs]
            unpacked[f"{prefix}out.{leaf}"] = packed.pop(f"{prefix}{out}.{leaf}")
            thirds = projections if apart else projections[0].chunk(3)
            for part, third in zip(("query", "key", "value"), thirds, strict=True):
                unpacked[f"{prefix}{part}.{leaf}"] = third.clone()
        if packed:
            raise CheckpointError(f"the checkpoint has {min(packed)}, which is not supported")
    return unpacked
