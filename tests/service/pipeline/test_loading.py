"""Tests of opening a bundle's graphs."""

import threading
from functools import partial
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from service.bundle.reader import Bundle
from service.engine.engine import Engine
from service.engine.heads import TRAINED_HEAD
from service.errors import BundleError, StartError
from service.pipeline import loading as module
from service.pipeline.loading import open_graphs
from tests.service.pipeline.conftest import make_settings


def test_open_bundle_has_engine_and_encoders_that_open_at_the_same_time(
    open_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2, timeout=60)  # broken if one waits for the other's end

    def meet_and_open(opener: Any, *arguments: Any, **options: Any) -> Any:
        both.wait()
        return opener(*arguments, **options)

    for name in ("open_engine", "open_encoders"):
        monkeypatch.setattr(module, name, partial(meet_and_open, getattr(module, name)))
    graphs = open_graphs(make_settings(open_bundle))
    encoders = graphs.encoders
    assert encoders.encodes_text
    contract = graphs.bundle.card.input
    black = np.zeros((1, contract.height, contract.width, 3), np.uint8)
    (found,) = graphs.engine.run(black, [[TRAINED_HEAD, encoders.make_blank(2).queries]])
    assert [len(logits) for logits in found.logits] == [len(open_bundle.labels), 2]


def test_options_of_a_gpu_reach_the_engine(tiny_bundle: Bundle) -> None:
    with pytest.raises(StartError, match=r"^cuda_options: device cpu has none"):
        open_graphs(make_settings(tiny_bundle, device="cpu", cuda_options="prefer_nhwc=1"))


@pytest.mark.parametrize(("owner", "name"), [(module, "open_encoders"), (Engine, "warm_up")])
def test_encoder_or_engine_that_does_not_run_stops_the_start(
    open_bundle: Bundle, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    fail = Mock(side_effect=BundleError("does not run"))
    monkeypatch.setattr(owner, name, fail)
    with pytest.raises(BundleError, match="does not run"):
        open_graphs(make_settings(open_bundle))
    if name == "warm_up":
        (make_blank,) = fail.call_args.args
        assert len(make_blank(3).queries) == 3
