"""Sentence embeddings, and folders without a text encoder."""

import json
from pathlib import Path

import pytest
import torch

from models.commands import RequestError
from models.text import TextEncoder, read_text_encoder
from tests.models.tiny_text import WIDTH, write_text_encoder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> TextEncoder:
    return read_text_encoder(write_text_encoder(tmp_path_factory.mktemp("text") / "tiny"))


def test_embeddings_have_length_one(encoder: TextEncoder) -> None:
    embeddings = encoder.embed(["red", "a photo of a blue square", ""])
    assert embeddings.shape == (3, WIDTH)
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(3))
    assert not torch.allclose(embeddings[0], embeddings[1], atol=0.05)
    assert encoder.embed([]).shape == (0, WIDTH)


def test_embedding_does_not_depend_on_other_texts_in_the_batch(encoder: TextEncoder) -> None:
    texts = ["red", "a photo of a large dark blue square", "circle"]
    alone = torch.cat([encoder.embed([text]) for text in texts])
    torch.testing.assert_close(encoder.embed(texts), alone, rtol=0, atol=1e-6)
    many = encoder.embed(texts * 50)  # more than one run takes
    torch.testing.assert_close(many[-3:], alone, rtol=0, atol=1e-6)


def test_template_takes_the_name_with_spaces_for_underscores(encoder: TextEncoder) -> None:
    embeddings = encoder.embed_names(["red_square"], "a {}")
    torch.testing.assert_close(embeddings, encoder.embed(["a red square"]))


def test_long_text_is_truncated(encoder: TextEncoder) -> None:
    assert (encoder.name, encoder.width) == ("tiny", WIDTH)
    ids, mask = encoder.tokenize(["red " * 1000, "red"])
    assert ids.shape == mask.shape == (2, 128)
    assert int(mask[1].sum()) == 3


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_incomplete_folder_is_refused(file: str, tmp_path: Path) -> None:
    folder = write_text_encoder(tmp_path / "tiny")
    (folder / file).unlink()
    with pytest.raises(RequestError, match="no BERT encoder"):
        read_text_encoder(folder)


def test_weights_that_do_not_fit_the_configuration_are_refused(tmp_path: Path) -> None:
    folder = write_text_encoder(tmp_path / "tiny")
    config = folder / "config.json"
    text = config.read_text()
    config.write_text(text.replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    with pytest.raises(RequestError, match="not those of its BERT"):
        read_text_encoder(folder)


def test_forged_tokenizer_is_refused(tmp_path: Path) -> None:
    file = write_text_encoder(tmp_path / "tiny") / "tokenizer.json"
    good = json.loads(file.read_text())
    file.write_text(json.dumps(good | {"model": 3}))
    with pytest.raises(RequestError, match="is damaged or not of its weights"):
        read_text_encoder(file.parent)
    padding = {"strategy": {"Fixed": 10**12}, "direction": "Right", "pad_to_multiple_of": None}
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    file.write_text(json.dumps(good | {"padding": padding}))
    read_text_encoder(file.parent).check(["red"])
