"""Forged pickles: a child process reads each, because some ended or took over the process."""

import json
import subprocess
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from timm.layers.ml_decoder import MLDecoder

from models.checkpoints.checkpoint import load_checkpoint, write_checkpoint
from models.checkpoints.layouts import body, classifier
from tests.export.tiny_network import LABELS, make_network
from tests.models.checkpoints import assert_refused

scalar: Any = np.float64().__reduce__()[0]  # rebuilds numpy's numbers

# Prints a line for each file: the type of the error, or nothing.
READ = """
import sys
from models.checkpoints.checkpoint import load_checkpoint
for path in sys.argv[1:]:
    try:
        load_checkpoint(path)
    except BaseException as error:
        print(path, type(error).__name__, flush=True)
    else:
        print(path, flush=True)
"""


class Forged:
    """Is pickled as a call of an allowed name, with any arguments and state."""

    def __init__(
        self, make: Callable[..., object], *arguments: object, state: object = None
    ) -> None:
        self._reduced = (make, arguments, state)

    def __reduce__(self) -> Any:
        return self._reduced


def number(code: object, data: object = bytes(8), state: object = None) -> Any:
    return Forged(scalar, Forged(np.dtype, code, False, True, state=state), data)


def make_storage(size: int, dtype: torch.dtype) -> Any:
    storage = torch.UntypedStorage(size)
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def tensor(offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> Forged:
    where = make_storage(16, torch.float32), offset, size, stride
    return Forged(torch._utils._rebuild_tensor_v2, *where, False, OrderedDict())


def quantised(*quantiser: object) -> Forged:
    where = make_storage(16, torch.qint8), 0, (4, 4), (4, 1)
    return Forged(torch._utils._rebuild_qtensor, *where, quantiser, False, OrderedDict())


def quantised_rows(scales: int, axis: int) -> Forged:
    zeros = torch.zeros(scales, dtype=torch.int64)
    return quantised(torch.per_channel_affine, zeros.double(), zeros, axis)


def forge_state(*, size: int = 8, fields: object = None, sub: object = None) -> object:
    return (3, "|", sub, None if fields is None else ("a",), fields, size, 1, 0x3F)


OBJECT = Forged(np.dtype, "O", False, True)
NUMBERS = {
    "object-with-state": number("O", state=(3, "|", None, None, None, -1, -1, 63)),
    "address": Forged(scalar, OBJECT, 4096),
    "large-item": number("V8", state=forge_state(size=10**6)),
    "object-fields": number("V8", state=forge_state(fields={"a": (OBJECT, 10**6)})),
    "subarray": number("V8", state=forge_state(sub=(OBJECT, (10**6,)))),
    "too-short": number("f8", b"abc"),
    "number-of-nothing": Forged(scalar, 8, bytes(8)),
}
FORGED = {
    "dictionary-of-int": Forged(OrderedDict, state=7),
    "dictionary-without-items": Forged(OrderedDict, state={"items": 7, "keys": 7, "get": 7}),
    "counter": Forged(Counter, [1, 2, 3], state=(None, {"x": 1})),
    "size": Forged(torch.Size, [1], state={"numel": 7}),
    "device": Forged(torch.device, "cpu", state={"type": 7}),
    "storage": Forged(torch.UntypedStorage, 16, state={"nbytes": 7}),
    "storage-of-petabytes": Forged(torch.UntypedStorage, 10**15),
    "bytes-of-petabytes": Forged(bytearray, 10**15),
    "far-offset": tensor(10**9, (4,), (1,)),
    "negative-offset": tensor(-4, (4,), (1,)),
    "large-size": tensor(0, (10**6,), (1,)),
    "negative-size": tensor(0, (-4,), (1,)),
    "overflow": tensor(0, (2**31, 2**31, 4), (2**33, 4, 1)),
    "far-stride": tensor(0, (4,), (2**62,)),
    "negative-stride": tensor(8, (4,), (-1,)),
    "view-of-terabytes": tensor(0, (2**40,), (0,)),
    "uninitialised": Forged(torch.Tensor, state=(torch.UntypedStorage(16), 0, (10**6,), (1,))),
    "meta": Forged(torch._utils._rebuild_meta_tensor_no_storage, torch.float32, (4,), (1,), False),
    "parameter": Forged(
        torch._utils._rebuild_parameter, torch.zeros(4), False, OrderedDict(),
        state=(make_storage(16, torch.float32), 0, (10**6,), (1,)),
    ),
    "sparse": torch.eye(4).to_sparse(),
    "sparse-out-of-bounds": Forged(
        torch._utils._rebuild_sparse_tensor, torch.sparse_coo,
        (torch.full((1, 2), 10**6), torch.ones(2), (4,)),
    ),
    "quantised": quantised(torch.per_tensor_affine, 1.0, 0),
    "few-scales": quantised_rows(1, 0),
    "odd-axis": quantised_rows(4, 7),
    "scalar": torch.tensor(1.0),
    "empty": torch.zeros(0, 2**40),
    "complex": torch.zeros(4, 4, 4, dtype=torch.complex64),
}  # fmt: skip


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The type of the error, by the file's name; all are read by one process."""
    folder = tmp_path_factory.mktemp("forged")
    good, content = folder / "good.pth", MLDecoder(3, -1, 16, 8).state_dict()
    torch.save(content, good)
    files = [good]
    for name, forged in (NUMBERS | FORGED).items():
        for kind in ("zip", "old"):
            files.append(folder / f"{name}.{kind}.pth")
            state: object = {**content, "embed_standart.weight": forged}
            if name in NUMBERS:
                state = {"best": forged, "model": content}
            torch.save(state, files[-1], _use_new_zipfile_serialization=kind == "zip")
    run = subprocess.run(
        [sys.executable, "-c", READ, *map(str, files), str(good)],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    lines = [line.partition(" ") for line in run.stdout.splitlines()]
    assert run.returncode == 0, f"{lines[-1]}: {run.stderr}"
    assert lines[0] == lines[-1] == (str(good), "", "")
    return {Path(path).name: error for path, _, error in lines}


@pytest.mark.parametrize("kind", ["zip", "old"])
@pytest.mark.parametrize("name", NUMBERS | FORGED)
def test_forged_number_is_not_built_and_forged_state_refused(
    errors: dict[str, str], name: str, kind: str
) -> None:
    assert errors[f"{name}.{kind}.pth"] == ("" if name in NUMBERS else "CheckpointError")


def test_types_that_torch_lacks_are_refused(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F4", "shape": [8], "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "small.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    assert_refused(path, "has tensors of F4: store float32")


def test_forged_number_of_classes_is_refused_before_a_network_takes_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = []

    def watch(create: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        devices.append(torch.get_default_device().type)
        return create(*arguments, **options)

    for module, name in ((classifier, "create_timm"), (body, "Backbone")):
        monkeypatch.setattr(module, name, partial(watch, getattr(module, name)))
    path = tmp_path / "forged.safetensors"
    save_file({"fc.weight": torch.zeros(10**6, 0)}, path)
    assert_refused(path, "resnet18", backbone="resnet18")
    save_file(MLDecoder(3, -1, 16, 8).state_dict() | {"body.x": torch.zeros(2)}, path)
    assert_refused(path, "its resnet18", backbone="resnet18")
    assert set(devices) == {"meta"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_classes": 10**12}, r"size mismatch for head\.queries"),
        ({"kind": "ram", "num_layers": 10**9}, "more layers than the file has tensors"),
    ],
)
def test_forged_sizes_are_compared_with_the_tensors_first(
    changes: dict[str, object], reason: str, tmp_path: Path
) -> None:
    network, path = make_network(), tmp_path / "own.safetensors"
    write_checkpoint(path, network, LABELS, {})
    fields = {"encoder_width": 256, "decoder_width": 32, "num_classes": 3} | changes
    forged = {"kind": "ml_decoder", "num_heads": 4, "feedforward_width": 64} | fields
    config = json.loads(network.config.model_dump_json()) | {"head": forged}
    save_file(network.state_dict(), tmp_path / "f.safetensors", {"config": json.dumps(config)})
    assert_refused(tmp_path / "f.safetensors", reason)
    load_checkpoint(path)


def test_small_file_that_takes_memory_is_refused(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.pth", tmp_path / "bad.pth"
    torch.save(content := MLDecoder(3, -1, 16, 8).state_dict(), good)
    with ZipFile(good) as plain, ZipFile(bad, "w", ZIP_DEFLATED) as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    assert_refused(bad, "is compressed")
    torch.save(
        content | {str(i): content["decoder.layers.0.linear1.weight"] for i in range(9)}, bad
    )
    assert_refused(bad, "larger than the file")
    nested: Any = {"a": torch.zeros(2)}
    for _ in range(3):
        nested = dict.fromkeys(range(2000), nested)
    merged = {"embedding_generator.0.weight": torch.zeros(1, 10**6), "FC.bias": torch.zeros(10**6)}
    head = {f"head.{key}": tensor for key, tensor in merged.items()}
    head |= {
        "head.embedding_generator.0.bias": torch.zeros(1),
        "body.conv1.0.weight": torch.ones(1),
    }
    deep: Any = [1]
    for _ in range(3):
        deep = [deep] * 2000
    for forged in (nested, {"my_ema": deep}, head | {"head.FC.weight": torch.zeros(10**6, 1)}):
        torch.save(forged, bad)
        assert_refused(bad, "larger than the file|no tensors under a usual|too few features")
    load_checkpoint(good)
