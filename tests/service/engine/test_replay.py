"""A replay runs one size of batches from and to the same memory; here the CPU's, for a GPU's."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from service.bundle.reader import Bundle
from service.engine.lanes import open_encoder
from service.engine.replay import Replay
from service.engine.sessions import Place
from service.errors import StartError
from tests.support.tiny_bundle import random_images, tiny_encoder

PLACE = Place("cpu", "fp32")


def test_each_batch_gives_its_own_tokens_in_the_same_place(tiny_bundle: Bundle) -> None:
    encoder = open_encoder(tiny_bundle, PLACE)
    replay = Replay(encoder, 3, "cpu")
    places = set()
    for seed in (0, 1):
        images = random_images(seed, 3)
        (expected,) = encoder.run(["tokens"], {"images": images})

        tokens = replay.run(images)

        np.testing.assert_array_equal(tokens.numpy(), expected)
        places.add(tokens.data_ptr())
    assert len(places) == 1


class Watched:
    """An encoder that notes which threads run it."""

    def __init__(self, encoder: ort.InferenceSession) -> None:
        self._encoder = encoder
        self.threads: list[threading.Thread] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def run_with_iobinding(self, binding: ort.IOBinding) -> None:
        self.threads.append(threading.current_thread())
        self._encoder.run_with_iobinding(binding)


def test_encoder_meets_one_thread_whoever_asks(tiny_bundle: Bundle) -> None:
    encoder = Watched(open_encoder(tiny_bundle, PLACE))
    replay = Replay(encoder, 3, "cpu")
    with ThreadPoolExecutor(1) as opener:
        opener.submit(replay.run, random_images(0, 3)).result()

    replay.run(random_images(0, 3))

    assert len(encoder.threads) == 2
    assert len(set(encoder.threads)) == 1


def test_replay_that_nobody_needs_ends_its_thread(tiny_bundle: Bundle) -> None:
    encoder = Watched(open_encoder(tiny_bundle, PLACE))
    replay = Replay(encoder, 3, "cpu")
    replay.run(random_images(0, 3))

    del replay
    gc.collect()

    encoder.threads[0].join(10)
    assert not encoder.threads[0].is_alive()


def test_run_that_fails_tells_who_asked_and_the_next_one_works(tiny_bundle: Bundle) -> None:
    encoder = open_encoder(tiny_bundle, PLACE)
    replay = Replay(encoder, 3, "cpu")
    images = random_images(0, 3)

    with pytest.raises(RuntimeError):
        replay.run(images[:2])

    (expected,) = encoder.run(["tokens"], {"images": images})
    np.testing.assert_array_equal(replay.run(images).numpy(), expected)


def test_encoder_whose_tokens_are_not_counted_stops_the_start() -> None:
    graph = onnx.load_from_string(tiny_encoder())
    graph.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "H"
    graph.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "S"
    open_sizes = ort.InferenceSession(
        graph.SerializeToString(), providers=["CPUExecutionProvider"], enable_fallback=0
    )

    with pytest.raises(StartError, match="tokens have open sizes"):
        Replay(open_sizes, 3, "cpu")
