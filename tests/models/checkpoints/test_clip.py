"""CLIP and SigLIP as `transformers` stores them: the logits are its own."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import CLIPModel, SiglipModel

from models.checkpoints.clip import read_clip
from models.checkpoints.description import Hints
from models.config import CosineConfig
from tests.models.checkpoints import assert_refused
from tests.models.tiny_towers import KINDS, SIDE, run_transformers, write_towers

TEXTS = (
    "a photo of a dog.",
    "Fire, HYDRANT!",
    "x",
    "a very long text about a car park in front of a shopping centre at night, and more",
)


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_towers(tmp_path_factory.mktemp("models") / f"tiny-{request.param}", request.param)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_towers(tmp_path_factory.mktemp("clip") / "tiny", "clip")


def copy(folder: Path, target: Path) -> Path:
    return Path(shutil.copytree(folder, target / folder.name))


def test_logits_equal_transformers(folder: Path) -> None:
    (network, text), images = read_clip(folder), torch.randn(3, 3, SIDE, SIDE)
    expected = run_transformers(folder, images, TEXTS)
    assert expected.std() > 0.1
    with torch.inference_mode():
        logits = network(images, text.embed(TEXTS))
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_configuration_has_the_models_facts(folder: Path) -> None:
    network, text = read_clip(folder)
    config, rules = network.config, Tokenizer.from_str(text.tokenizer.decode())
    assert rules.truncation["max_length"] == text.module.max_tokens
    clip = config.head.kind == "clip"
    assert config.backbone == folder.name
    assert isinstance(config.head, CosineConfig)
    assert config.head.embedding_encoder == folder.name
    assert config.head.embedding_width == (20 if clip else 32)
    assert config.activation == ("softmax" if clip else "sigmoid")
    spec = config.input
    assert (spec.height, spec.width, spec.interpolation) == (SIDE, SIDE, "bicubic")
    assert (spec.resize_mode, spec.crop_pct) == ("squash", 1.0)
    assert spec.mean[0] == (0.48145466 if clip else 0.5)
    hinted = read_clip(folder, Hints(embedding_template="{}", single_label=True))[0].config
    assert (hinted.head.embedding_template, hinted.activation) == ("{}", "softmax")


def test_weights_of_older_versions_are_read(folder: Path, tmp_path: Path) -> None:
    old = copy(folder, tmp_path)
    weights = old / "model.safetensors"
    model = (CLIPModel if "clip" in folder.name.split("-") else SiglipModel).from_pretrained(old)
    state = model.state_dict() | {"text_model.embeddings.position_ids": torch.arange(9)[None]}
    weights.unlink()
    torch.save(state, old / "pytorch_model.bin")
    images = torch.randn(1, 3, SIDE, SIDE)
    embeddings = torch.randn(2, read_clip(folder)[1].width)
    with torch.inference_mode():
        logits, expected = (
            read_clip(model_folder)[0](images, embeddings) for model_folder in (old, folder)
        )
    torch.testing.assert_close(logits, expected)


def test_photos_are_cut_as_the_image_processor_says_if_asked(clip: Path, tmp_path: Path) -> None:
    folder = copy(clip, tmp_path)
    change(folder / "preprocessor_config.json", size={"shortest_edge": 32}, resample=2)
    spec = read_clip(folder, Hints(crop=True))[0].config.input
    assert (spec.resize_mode, spec.crop_pct, spec.interpolation) == ("crop", 0.75, "bilinear")
    change(folder / "preprocessor_config.json", size={"shortest_edge": 59})  # 24 / (24 / 59) < 59
    share = read_clip(folder, Hints(crop=True))[0].config.input.crop_pct
    assert int(SIDE / share) == 59
    folder = write_towers(tmp_path / "other", "siglip")
    assert_refused(folder, "leave out --crop", read_clip, hints=Hints(crop=True))


@pytest.mark.parametrize("canonical", [False, True])
def test_siglip_texts_are_cleaned_as_in_training(tmp_path: Path, *, canonical: bool) -> None:
    folder = write_towers(tmp_path / "tiny", "siglip")
    rules = json.loads((folder / "tokenizer.json").read_text())
    rules["normalizer"] = rules["normalizer"]["normalizers"][1]  # as published: it keeps capitals
    rules["post_processor"] = None  # as Gemma's, whose options add the end
    (folder / "tokenizer.json").write_text(json.dumps(rules))
    if canonical:
        change(folder / "tokenizer_config.json", tokenizer_class="SiglipTokenizer")
    tokenizer = Tokenizer.from_str(read_clip(folder)[1].tokenizer.decode())
    tokens = tokenizer.encode("A Photo, of  CATS. ").tokens
    clean, kept = "a▁photo▁of▁cats<eos>", "a▁photo,▁of▁▁cats.▁<eos>"
    assert "".join(tokens) == (clean if canonical else kept)


def test_folder_without_optional_files_gives_the_same(folder: Path, tmp_path: Path) -> None:
    (network, text), plain = read_clip(folder), copy(folder, tmp_path)
    (plain / "tokenizer_config.json").unlink()
    processor = json.loads((plain / "preprocessor_config.json").read_text())
    (plain / "preprocessor_config.json").unlink()
    kept = {key: processor[key] for key in ("size", "crop_size") if key in processor}
    (plain / "processor_config.json").write_text(json.dumps({"image_processor": kept}))
    assert read_clip(plain)[0].config == network.config
    assert read_clip(plain)[1].tokenizer == text.tokenizer
    change(plain / "processor_config.json", image_processor={**kept, "do_normalize": False})
    assert read_clip(plain)[0].config.input.mean == (0, 0, 0)


def test_tokenizer_of_another_model_is_refused(clip: Path, tmp_path: Path) -> None:
    file = copy(clip, tmp_path) / "tokenizer.json"
    model = json.loads(file.read_text())["model"]
    model["vocab"]["other"] = 1400
    change(file, model=model)
    assert_refused(file.parent, "tokens, and a text tower that knows", read_clip)


@pytest.mark.parametrize(
    ("file", "changes", "reason"),
    [
        ("model.safetensors", None, "has no model.safetensors or pytorch_model.bin"),
        ("tokenizer.json", None, "has no tokenizer.json"),
        ("preprocessor_config.json", None, "has no preprocessor_config.json"),
        ("config.json", None, "of type clip or siglip, .*; it is without config"),
        ("config.json", {"model_type": "siglip2"}, "or in the layout of timm; it is siglip2"),
        ("config.json", {"model_type": [[1]]}, "of type clip or siglip"),
        ("config.json", {"vision_config": 3}, "config.json that is damaged"),
        ("config.json", {"projection_dim": 10**12}, "size mismatch for visual_projection"),
        ("config.json", {"vision_config": {"num_hidden_layers": 10**9}}, "more layers than"),
        ("preprocessor_config.json", {"crop_size": {"height": 8, "width": 8}}, "not supported"),
        ("preprocessor_config.json", {"do_center_crop": False}, "not supported"),
        ("tokenizer.json", {"model": 3}, "tokenizer.json that is damaged"),
        ("tokenizer_config.json", {"bos_token": None}, "lacks special tokens"),
        ("preprocessor_config.json", {"do_rescale": False}, "not supported: do_rescale: Input"),
        ("preprocessor_config.json", {"rescale_factor": 1}, "not supported: rescale_factor"),
        ("preprocessor_config.json", {"resample": 5}, "not supported: resample"),
    ],
)
def test_missing_or_other_file_is_refused(
    clip: Path, tmp_path: Path, file: str, changes: dict[str, object] | None, reason: str
) -> None:
    copied = copy(clip, tmp_path)
    if changes is None:
        (copied / file).unlink()
    else:
        change(copied / file, **changes)
    assert_refused(copied, reason, read_clip)


def test_code_in_a_folder_is_neither_run_nor_offered(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker, asked, copied = tmp_path / "pwned", [], copy(folder, tmp_path)
    monkeypatch.setattr("builtins.input", lambda text: asked.append(text) or "y")
    (copied / "code.py").write_text(f"open({str(marker)!r}, 'w')\nclass Code: pass\n")
    names = dict.fromkeys(("AutoConfig", "AutoModel", "AutoImageProcessor"), "code.Code")
    names["AutoTokenizer"] = ["code.Code"] * 2
    for file in ("config.json", "tokenizer_config.json", "preprocessor_config.json"):
        change(copied / file, auto_map=names)
        assert read_clip(copied)
    change(copied / "tokenizer_config.json", tokenizer_class="Code")
    assert read_clip(copied)
    change(copied / "preprocessor_config.json", image_processor_type="Code")
    assert_refused(copied, "a preparation of photos that is not supported", read_clip)
    assert (marker.exists(), asked) == (False, [])


def test_repository_on_the_hub_is_read_and_one_of_timm_left(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"  # of the files that were asked for
    cache.mkdir()

    def download(repository: str, name: str) -> Path | None:
        file = (folder if repository == "someone/tiny" else tmp_path) / name
        return Path(shutil.copy(file, cache / name)) if file.is_file() else None

    monkeypatch.setattr("models.checkpoints.hub._download", download)
    network, text = read_clip("hf-hub:someone/tiny")
    assert network.config.backbone == text.name == "someone/tiny"
    torch.testing.assert_close(text.embed(TEXTS), read_clip(folder)[1].embed(TEXTS))
    config = {"architecture": "resnet50", "model_type": "timm_wrapper"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_clip("hf-hub:timm/resnet50") is None


def test_network_of_logits_is_not_read_from_towers(folder: Path) -> None:
    assert_refused(folder, "model without labels: only export reads it")


def change(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
