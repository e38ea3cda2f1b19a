"""Checkpoints on the hub, with a folder in its place."""

import errno
import hashlib
import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import timm
import torch
from huggingface_hub import constants
from timm.layers.ml_decoder import add_ml_decoder_head

from models.checkpoints.checkpoint import load_checkpoint, read_checkpoint
from models.checkpoints.description import CheckpointError, Hints
from models.checkpoints.files import read_weights
from models.checkpoints.hub import Remote, ask, fetch, read_range
from tests.models.checkpoints import assert_refused, read_config
from tests.support.fake_hub import FakeHub, serve_hub

REFERENCE = "hf-hub:someone/tagger"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of the one repository that there is."""

    def download(repository: str, name: str) -> Path | None:
        assert repository == "someone/tagger"
        return tmp_path / name if (tmp_path / name).is_file() else None

    monkeypatch.setattr("models.checkpoints.hub._download", download)
    return tmp_path


def write_timm_repository(hub: Path) -> None:
    model = add_ml_decoder_head(timm.create_model("test_resnet", num_classes=3))
    torch.save(model.state_dict(), hub / "pytorch_model.bin")
    (hub / "config.json").write_text(json.dumps({"architecture": "test_resnet"}))


def test_repository_has_the_architecture_the_preparation_and_the_label_names(hub: Path) -> None:
    write_timm_repository(hub)
    assert read_config(REFERENCE).backbone == "test_resnet"
    prepared = {"input_size": [3, 96, 128], "mean": [0.5, 0.5, 0.5], "interpolation": "bilinear"}
    config = {"architecture": "test_resnet", "pretrained_cfg": prepared}
    config["label_names"] = ["sea", "meadow", "rose"]
    (hub / "config.json").write_text(json.dumps(config))
    spec = read_config(REFERENCE).input
    assert (spec.height, spec.width, spec.interpolation) == (96, 128, "bilinear")
    assert spec.mean == (0.5, 0.5, 0.5)
    assert read_checkpoint(REFERENCE).label_names == ("sea", "meadow", "rose")
    config["pretrained_cfg"] = {"input_size": [3, 4096, 4096]}
    (hub / "config.json").write_text(json.dumps(config))
    assert_refused(REFERENCE, "of 4096 x 4096 pixels: give --image-size if this")
    hinted = read_config(REFERENCE, Hints(image_size=64)).input
    assert (hinted.height, hinted.width) == (64, 64)


def test_repository_is_refused_without_weights_or_with_a_damaged_config(hub: Path) -> None:
    assert_refused(REFERENCE, "has no model")
    for content in ("[]", "{", '{"pretrained_cfg": 3}', "[" * 100_000):
        (hub / "config.json").write_text(content)
        assert_refused(REFERENCE, "damaged")


@pytest.mark.parametrize("content", ["[", "{}", '{"hidden_size": 768, "model_type": "clip"}'])
def test_other_config_next_to_a_file_is_ignored(content: str, tmp_path: Path) -> None:
    write_timm_repository(tmp_path)
    path = (tmp_path / "pytorch_model.bin").rename(tmp_path / "best.pth")
    assert read_config(path).backbone == "test_resnet"
    (tmp_path / "config.json").write_text(content)
    assert_refused(path, "does not name its backbone")
    assert read_config(path, Hints("test_resnet")).backbone == "test_resnet"


@pytest.fixture
def real_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    (tmp_path / "hub").mkdir()
    write_timm_repository(tmp_path / "hub")
    with serve_hub(tmp_path / "hub") as hub:
        hub.use(monkeypatch, tmp_path / "cache")
        yield hub


def test_interrupted_download_goes_on_and_a_damaged_one_is_noticed(
    real_hub: FakeHub, tmp_path: Path
) -> None:
    content = (real_hub.folder / "pytorch_model.bin").read_bytes()
    blobs = tmp_path / "cache" / "models--someone--tagger" / "blobs"
    blobs.mkdir(parents=True)
    part = blobs / f"{hashlib.sha256(content).hexdigest()}.part"
    part.write_bytes(content[:1000])
    real_hub.damages = True
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin was damaged by the download"):
        fetch(REFERENCE, "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"config\.json was damaged by the download"):
        fetch(REFERENCE, "config.json")
    assert not list(blobs.glob("*.part"))
    real_hub.damages = False
    part.write_bytes(content[:2000])
    with ThreadPoolExecutor() as pool:  # two downloads at once
        fetched = set(pool.map(fetch, [REFERENCE] * 2, ["pytorch_model.bin"] * 2))
    assert [path.read_bytes() for path in fetched if path] == [content]
    assert real_hub.ranges == ["bytes=1000-", "bytes=2000-"]
    assert fetch(REFERENCE, "model.safetensors") is None


@pytest.mark.usefixtures("real_hub")
def test_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("huggingface_hub.file_download.http_get", write)
    with pytest.raises(CheckpointError, match="cannot be fetched: No space left"):
        fetch(REFERENCE, "pytorch_model.bin")


@pytest.mark.parametrize(
    ("status", "headers", "reason"),
    [
        (401, {"X-Error-Code": "GatedRepo"}, "accept its licence on {0}/someone/tagger, and set "),
        (403, {"X-Error-Code": "GatedRepo"}, "accept its licence on {0}/someone/tagger, and set "),
        (401, {"X-Error-Code": "RepoNotFound"}, "there is no such repository, or it is private: "),
        (401, {}, "{0} answered 401: set a valid HF_TOKEN"),
        (403, {}, "{0} answered 403: set another HF_TOKEN"),
        (404, {}, "{0} answered 404: check the name"),
        (429, {}, "{0} answered 429: repeat the command later"),
        (503, {}, "{0} answered 503: repeat the command later"),
        (200, {"ETag": '"1"'}, "{0} did not answer as a hub does: log in to the network"),
        (200, {"ETag": '"../../x"', "X-Repo-Commit": "a" * 40}, "{0} did not answer as a hub does"),
        (302, {"Location": "http://login.example/"}, "{0} did not answer as a hub does: log in to"),
        (0, {}, r"the connection failed \(.*\): repeat the command"),
    ],
)
def test_refusal_of_the_hub_names_the_next_step(
    status: int, headers: dict[str, str], reason: str, real_hub: FakeHub
) -> None:
    real_hub.answer = (status, headers)
    words = rf"^{REFERENCE} cannot be fetched: {reason.format(real_hub.address)}[^\n]*\Z"
    with pytest.raises(CheckpointError, match=words):
        fetch(REFERENCE, "pytorch_model.bin")
    real_hub.answer = None
    assert fetch(REFERENCE, "pytorch_model.bin") is not None


@pytest.mark.usefixtures("real_hub")
def test_hub_without_answer_and_invalid_name_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="cannot be fetched: Repo id must be in the form"):
        fetch("hf-hub:a/b/c", "config.json")
    with monkeypatch.context() as patch:
        nowhere = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", nowhere)
        with pytest.raises(CheckpointError, match=r"failed \(ConnectError .*: repeat the command"):
            fetch(REFERENCE, "config.json")
    assert fetch(REFERENCE, "config.json") is not None


def test_cache_is_enough_if_the_hub_is_offline(
    real_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = read_checkpoint(REFERENCE, Hints(image_size=64)).sha256
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    real_hub.answer = (500, {})
    assert read_checkpoint(REFERENCE, Hints(image_size=64)).sha256 == weights
    assert fetch(REFERENCE, "preprocess.json") is None
    cached = fetch(REFERENCE, "config.json")
    assert cached is not None
    etag = cached.resolve().name
    assert ask(REFERENCE, "config.json") == Remote(cached.stat().st_size, etag, cached=True)
    with pytest.raises(CheckpointError, match=r"HF_HUB_OFFLINE is set, and x\.onnx is"):
        ask(REFERENCE, "x.onnx")
    offline = "cannot be fetched: HF_HUB_OFFLINE is set, and {} is not in the cache"
    assert_refused("hf-hub:someone/other", offline.format("model.safetensors"))
    with pytest.raises(CheckpointError, match=offline.format("open_clip_model.safetensors")):
        read_weights(REFERENCE, ["open_clip_model.safetensors", "open_clip_pytorch_model.bin"])


@pytest.mark.parametrize("form", ["folder", "cached", "remote", "without ranges"])
def test_part_of_a_file_and_its_size_are_read_without_a_download(
    form: str, real_hub: FakeHub, tmp_path: Path
) -> None:
    name, checkpoint = "pytorch_model.bin", real_hub.folder if form == "folder" else REFERENCE
    content = (real_hub.folder / name).read_bytes()
    digest = "" if form == "folder" else hashlib.sha256(content).hexdigest()
    if form == "cached":
        fetch(checkpoint, name)
    real_hub.ignores_ranges = form == "without ranges"
    here = form in ("folder", "cached")
    assert ask(checkpoint, name) == Remote(len(content), digest, here)
    assert ask(checkpoint, "x.onnx") is None
    assert read_range(checkpoint, name, 1000, 8) == content[1000:1008]
    with pytest.raises(CheckpointError, match=r"has no pytorch_model\.bin, or one that is cut"):
        read_range(checkpoint, name, len(content) - 4, 8)
    with pytest.raises(CheckpointError, match=r"has no x\.onnx, or one"):
        read_range(checkpoint, "x.onnx", 0, 8)
    assert here or not list(tmp_path.glob("cache/*/blobs/*"))


@pytest.mark.parametrize("number", [math.nan, -math.inf])
def test_tensor_that_is_not_finite_is_named(number: float, tmp_path: Path) -> None:
    write_timm_repository(tmp_path)
    torch.save(timm.create_model("test_resnet").state_dict(), tmp_path / "whole.pt")
    for file, key in (("pytorch_model.bin", "bn1.bias"), ("whole.pt", "fc.bias")):
        path = (tmp_path / file).rename(tmp_path / f"{file}.pth")
        good = torch.load(path)
        torch.save({**good, key: torch.full_like(good[key], number)}, path)
        assert_refused(path, rf"{key} has NaN or infinite numbers: give", backbone="test_resnet")
        torch.save(good, path)
        load_checkpoint(path, backbone="test_resnet")
