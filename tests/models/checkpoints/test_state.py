"""Tensors in the dictionaries that training code writes."""

from typing import Any

import pytest
import torch

from models.checkpoints.description import CheckpointError
from models.checkpoints.layouts.state import leave_out_training, unwrap
from models.checkpoints.pickles import Unread

GOOD = {"a.weight": torch.ones(2, 3), "a.running_mean": torch.ones(2)}
OTHER = {key: -tensor for key, tensor in GOOD.items()}
PARAMETERS = {"a.weight": GOOD["a.weight"]}
LAST = {**OTHER, "a.running_mean": GOOD["a.running_mean"]}


def add(prefix: str, state: dict[str, Any]) -> dict[str, Any]:
    return {f"{prefix}{key}": tensor for key, tensor in state.items()}


@pytest.mark.parametrize(
    "content",
    [
        GOOD,
        *({name: GOOD, "epoch": 3} for name in ("net", "network", "params", "weights", "model")),
        *(
            {"state_dict": OTHER, name: add("module.", GOOD)}
            for name in ("model_ema_state_dict", "ema_state_dict", "state_dict_ema", "model_ema",
            "ema", "ema_model", "averaged_model", "params_ema")
        ),
        {"model": OTHER, "ema": {"module": GOOD, "updates": 7}},
        {"model": LAST, "ema": {"shadow": PARAMETERS, "decay": 0.99}},
        {"model": add("module.", LAST), "ema": {"shadow": PARAMETERS}},
        {"model": GOOD, "model_ema": None, "ema": 0.999, "weights": {"loss": torch.ones(3)}},
        {"state_dict": {**add("model.", OTHER), **add("ema_model.module.", GOOD)}},
        {**add("module.", GOOD), "n_averaged": torch.tensor(4)},
        {**add("online_model.", OTHER), **add("ema_model.", GOOD),
         "initted": torch.tensor(True), "step": torch.tensor(7)},  # of ema_pytorch
        {**add("net.", OTHER), **add("ema.ema_model.", GOOD), "ema.step": torch.tensor(7)},
        add("_orig_mod.module.", GOOD),
        add("module._orig_mod.", GOOD),
        {"a._checkpoint_wrapped_module.weight": GOOD["a.weight"],
         "a._orig_mod.running_mean": GOOD["a.running_mean"]},
    ],
)  # fmt: skip
def test_weights_are_found_and_averaged_ones_come_first(content: dict[str, Any]) -> None:
    state, _ = unwrap(content)
    assert state.keys() == GOOD.keys()
    assert all(state[key].equal(tensor) for key, tensor in GOOD.items())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"student": GOOD, "teacher": OTHER}, "usual name: student, teacher; store"),
        ({"model": GOOD, "net": OTHER}, "several networks, under model and net"),
        ({"model": GOOD, "ema": {"shadow_params": []}}, "entries .* usual name: ema; store"),
        ({"module.a": torch.ones(1), "a": torch.ones(1)}, "with and without a prefix"),
        ({"a._packed_params.dtype": torch.qint8}, "quantised weights"),
    ],
)
def test_other_weights_are_refused_as_what_they_are(content: dict[str, Any], reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        unwrap(content)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *((name, {name: GOOD}) for name in ("avg_model", "ema_weights", "EMA", "state_dict_swa")),
        ("StochasticWeightAveraging",
         {"callbacks": {"StochasticWeightAveraging": {"average_model_state": GOOD}}}),
        ("EMACallback", {"callbacks": {"EMACallback": {"ema_weights": list(GOOD.values())}}}),
        ("averaged_weights", {"averaged_weights": Unread()}),
        ("ema", {"state_dict": {"model": OTHER, "ema": GOOD}}),
    ],
)  # fmt: skip
def test_averages_under_other_names_are_not_passed_over(name: str, content: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=rf"averaged weights beside others \({name}\)"):
        unwrap({"state_dict": OTHER, **content})


def test_settings_of_averages_and_of_optimizers_are_no_weights() -> None:
    others = {"averaging_state": {"n_averaged": torch.tensor(4)}, "ema_decay": 0.99,
        "optimizer": {"state": {0: {"exp_avg": torch.ones(2, 3)}}}, "schema": OTHER}  # fmt: skip
    assert unwrap({"state_dict": GOOD, **others})[0] == GOOD


def test_layers_are_not_taken_for_losses_and_metrics() -> None:
    layers = ("val_proj.weight", "metric_fc.weight", "asymmetric_conv.weight", "glossy.bias")
    kept = {name: torch.ones(2, 3) for name in layers}
    others = {"val_map.thresholds": torch.ones(5), "loss.prototypes": torch.ones(2, 3),
        "criterion.pos_weight": torch.ones(3)}  # fmt: skip
    assert leave_out_training(kept | others).keys() == kept.keys()
