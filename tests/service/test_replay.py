"""A replay runs one size of batches from and to the same memory; here the CPU's, for a GPU's."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from service.bundle import Bundle
from service.errors import StartError
from service.lanes import open_encoder
from service.replay import Replay
from service.sessions import Place
from tests.tiny_bundle import random_images, tiny_encoder

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


def test_encoder_whose_tokens_are_not_counted_stops_the_start() -> None:
    graph = onnx.load_from_string(tiny_encoder())
    graph.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "H"
    graph.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "S"
    open_sizes = ort.InferenceSession(
        graph.SerializeToString(), providers=["CPUExecutionProvider"], enable_fallback=0
    )

    with pytest.raises(StartError, match="tokens have open sizes"):
        Replay(open_sizes, 3, "cpu")
