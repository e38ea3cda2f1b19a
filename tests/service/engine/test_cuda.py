"""Options of the CUDA provider, and replays; here in the CPU's memory, which binds alike."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime as ort
import pytest

from service.bundle.card import Device
from service.bundle.reader import Bundle
from service.engine.cuda import CudaOptions, Replay, parse_cuda_options
from service.engine.engine import Engine, open_engine
from service.engine.session_set import SessionSet, open_encoder
from service.engine.sessions import SessionConfig
from service.errors import StartError
from tests.support.engines import (
    assert_gives_the_cpus_logits,
    assert_gives_the_cpus_memories,
    pretend_gpu,
)
from tests.support.tiny_bundle import blank_labels, random_images

GRAPHS = "enable_cuda_graph=1"


def test_options_are_read_and_ours_are_not_passed_on() -> None:
    assert parse_cuda_options(None, "cpu") == CudaOptions()
    found = parse_cuda_options(f" a = b=c,{GRAPHS},shared_arena=1,size_factor=4", "cuda")
    assert found == CudaOptions((("a", "b=c"), ("enable_cuda_graph", "1")), True, 4)
    assert found.uses_graphs
    assert found.list_for("encoder") == list(found.provider)
    assert found.list_for("open_head") == [("a", "b=c")]
    assert not parse_cuda_options("enable_cuda_graph=0", "cuda").uses_graphs


@pytest.mark.parametrize(
    ("text", "device", "said"),
    [
        ("prefer_nhwc", "cuda", "'prefer_nhwc' must be NAME=VALUE"),
        ("a=1,a=2", "cuda", "'a=2' must be NAME=VALUE, each name once"),
        ("shared_arena=yes", "cuda", "shared_arena must be 0 or 1; it is yes"),
        ("size_factor=3", "tensorrt", "size_factor must be 2 or 4 or 8 or 16; it is 3"),
        ("a=1", "cpu", "device cpu has none: set device cuda, or unset them"),
        ("fuse_conv_bias=1", "cuda", "fuse_conv_bias gives wrong scores without prefer_nhwc=1"),
        ("prefer_nhwc=false,fuse_conv_bias=true", "cuda", "fuse_conv_bias gives wrong scores .*"),
        (GRAPHS, "tensorrt", "enable_cuda_graph needs device cuda; it is tensorrt"),
    ],
)
def test_options_that_cannot_work_stop_the_start(text: str, device: Device, said: str) -> None:
    with pytest.raises(StartError, match=f"^cuda_options: {said}$|^cuda_options: {said},"):
        parse_cuda_options(text, device)


@pytest.mark.skipif("CUDAExecutionProvider" in ort.get_available_providers(), reason="has CUDA")
def test_options_that_this_machine_lacks_stop_the_start(tiny_bundle: Bundle) -> None:
    with pytest.raises(StartError, match=r"^device cuda"):  # no fallback to the CPU
        open_engine(tiny_bundle, device="auto", cuda_options="shared_arena=1")
    config = SessionConfig("cuda", "fp32", cuda=CudaOptions(shared_arena=True))
    with pytest.raises(StartError, match=r"^cuda_options: shared_arena: .* not implemented"):
        open_encoder(tiny_bundle, config)


def test_replays_run_in_one_thread_and_give_the_cpus_results(
    mapped_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: set[tuple[int, int]] = set()
    run = Replay.run

    def remember(replay: Replay, images: np.ndarray) -> ort.OrtValue:
        runs.add((len(images), threading.get_ident()))
        return run(replay, images)

    monkeypatch.setattr(Replay, "run", remember)
    with pretend_gpu():
        options = f"{GRAPHS},size_factor=4,shared_arena=1"
        gpu = open_engine(mapped_bundle, device="cuda", max_batch_size=6, cuda_options=options)
    gpu.warm_up(blank_labels)
    for _ in range(2):
        assert_gives_the_cpus_logits(gpu, mapped_bundle, num_queries=9, tolerance=1e-5)
    assert_gives_the_cpus_memories(gpu, mapped_bundle, num_queries=9, tolerance=1e-5)
    assert sorted(size for size, _ in runs) == [1, 4, 6]
    assert {thread for _, thread in runs} != {threading.get_ident()}


def test_tokens_of_a_replay_outlive_the_next_run_of_any_thread(mapped_bundle: Bundle) -> None:
    def embed(engine: Engine, seed: int) -> np.ndarray:
        results = engine.run(random_images(seed, 2), [[None]] * 2, explained=[0], embedded=[0])
        assert results[0].tokens is not None
        return results[0].tokens

    with pretend_gpu():
        gpu = open_engine(mapped_bundle, device="cuda", max_batch_size=2, cuda_options=GRAPHS)
    cpu = open_engine(mapped_bundle, device="cpu", precision="fp32")
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda seed: embed(gpu, seed), range(8)))

    expected = [embed(cpu, seed) for seed in range(8)]
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)


def test_embeddings_are_scored_by_the_thread_of_replays(
    mapped_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def remember(*_: object) -> list[object]:
        threads.append(threading.current_thread().name)
        return []

    with pretend_gpu():
        gpu = open_engine(mapped_bundle, device="cuda", max_batch_size=2, cuda_options=GRAPHS)
    monkeypatch.setattr(SessionSet, "run_heads", remember)
    gpu.score(np.zeros((2, 4), np.float32), [None])
    assert threads == ["replay_0"]
