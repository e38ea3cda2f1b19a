"""The words of `everyday`: every label has them, complete in each language that is offered."""

import json
from collections import Counter
from pathlib import Path

import pytest

from export import ExportError
from export.__main__ import main
from export.sources.label_sets import EVERYDAY, EVERYDAY_WORDS, read_words
from service.bundle.card import fold_name
from service.bundle.reader import Bundle, load_bundle
from service.labels.words import parse_words
from service.settings import find_default_bundle

WORDS = parse_words(EVERYDAY_WORDS.read_bytes())
NAMES = json.loads(EVERYDAY.read_bytes())["labels"]
LANGUAGES = {"de", "es", "fr", "it", "nl", "pt"}


def test_all_names_and_their_parents_have_words_in_all_languages() -> None:
    bundle = load_bundle(find_default_bundle())
    assert WORDS.keys() >= {*NAMES, *(label.name for label in bundle.labels)}
    for words in WORDS.values():
        assert words.translations.keys() == LANGUAGES
        assert WORDS.keys() >= {*words.parents}


def test_parents_make_trees_without_circles() -> None:
    for words in WORDS.values():
        for nearest, *above in (words.parents[i:] for i in range(len(words.parents))):
            assert WORDS[nearest].parents == tuple(above)


def test_no_word_means_two_labels() -> None:
    english = Counter(fold_name(word) for n, each in WORDS.items() for word in (n, *each.aliases))
    assert english.most_common(1)[0][1] == 1
    for lang in LANGUAGES:
        words = Counter(fold_name(each.translations[lang]) for each in WORDS.values())
        assert words.most_common(1)[0][1] == 1, words.most_common(3)


def test_default_bundle_has_these_words() -> None:
    assert load_bundle(find_default_bundle()).read_words() == EVERYDAY_WORDS.read_bytes()


def test_finished_bundle_gets_words_and_keeps_its_graphs(
    tiny_bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, out = tmp_path / "words.csv", tmp_path / "tiny"
    options = ["--bundle", str(tiny_bundle.path), "--out", str(out), "--words", str(table)]
    table.write_text("name\ncat\n")
    assert main(options) == 2
    assert "no label has aliases, parents or translations" in capsys.readouterr().err
    table.write_text("name,translation:de,parent\ncat,Katze,animal\n")
    assert main(options) == 0
    changed = load_bundle(out)
    assert {*changed.manifest.files} - {*tiny_bundle.manifest.files} == {"words.json"}
    assert changed.photo_fingerprint == tiny_bundle.photo_fingerprint
    words = parse_words(changed.read_words() or b"")
    assert (words["cat"].translations, words["cat"].parents) == ({"de": "Katze"}, ("animal",))
    with pytest.raises(ExportError, match="cannot be read"):
        read_words(tmp_path / "missing.csv")
    assert parse_words(read_words(out / "words.json")) == words
