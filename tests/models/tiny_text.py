"""A sentence encoder of test size on disk: a BERT with random weights and a word tokenizer."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel

WORDS = ("a", "photo", "of", "red", "green", "blue", "square", "circle", "grey", "dark", "large")
WIDTH = 12


def write_text_encoder(folder: Path, seed: int = 0) -> Path:
    """Writes `config.json`, `model.safetensors` and `tokenizer.json`; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    specials = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
    vocabulary = {word: i for i, word in enumerate((*specials, *WORDS))}
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
    )
    config.to_json_file(folder / "config.json")
    torch.manual_seed(seed)
    bert = BertModel(config)
    for parameter in bert.parameters():  # BERT's own start makes all texts look alike
        parameter.data += 0.3 * torch.randn_like(parameter)
    save_file(bert.state_dict(), folder / "model.safetensors")
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
