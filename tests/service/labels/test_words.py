"""Tests of words: what a word means in a language, and their form in files."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import AmbiguousWord, InvalidLabelSet, UnknownLanguage
from service.labels.words import Dictionary, Lexicon, Words, load_words, pack_words, parse_words

COUCH = Words(("sofa",), ("furniture",), {"de": "Sofa", "pt-BR": "sofá"})
WORDS = {
    "couch": COUCH,
    "bench": Words(translations={"de": "Bank", "fr": "banc"}),
    "bank": Words(translations={"de": "Bank"}),
    "poison": Words(translations={"de": "Gift"}),
    "furniture": Words(translations={"de": "Möbel"}),
}
NAMES = ("couch", "bench", "bank", "poison", "gift")
LEXICON = Lexicon((Dictionary(NAMES, WORDS), Dictionary(("cat",), {"cat": Words(("puss",))})))

texts = st.text("abcß é", min_size=1, max_size=9).filter(lambda text: text == text.strip())
words = st.builds(
    Words,
    st.lists(texts, max_size=3).map(tuple),
    st.lists(texts, max_size=3).map(tuple),
    st.dictionaries(st.sampled_from(("de", "fr", "zh-Hant")), texts),
)


@pytest.mark.parametrize(
    ("word", "lang", "meant"),
    [
        ("couch", None, "couch"),
        ("SOFA", None, "couch"),
        ("Sofa", "de", "couch"),
        ("Sofa", "de-AT", "couch"),
        ("Puss", "de", "cat"),  # names and aliases are there in all languages
        ("Gift", "de", "poison"),
        ("gift", "de", "gift"),  # a name means itself
        ("Gift", None, "gift"),
        ("banc", None, None),
        ("banc", "fr", "bench"),
        ("bank", "de", "bank"),
        ("Möbel", "de", "furniture"),
        ("couch_", None, None),
    ],
)
def test_word_means_a_name_in_its_language(word: str, lang: str | None, meant: str | None) -> None:
    assert LEXICON.speak(lang).find(word) == meant


@pytest.mark.parametrize(
    "row",
    [
        {"aliases": "kitty"},
        {"aliases": [5]},
        {"parents": [["a"]]},
        {"translations": None},
        {"translations": ["de"]},
        {"translations": {"de": 5}},
    ],
)
def test_row_of_other_types_is_damaged(row: dict[str, object]) -> None:
    with pytest.raises((TypeError, AttributeError)):
        load_words(json.dumps({"labels": [{"name": "cat", **row}]}), {"cat"})
    assert load_words(pack_words({"couch": COUCH}), {"couch"}) == {"couch": COUCH}


def test_aliases_of_a_set_without_a_language_are_no_words_of_it() -> None:
    present = Dictionary(("present",), {"present": Words(("Gift",))})
    assert LEXICON.speak("de", [present]).find("GIFT") == "poison"
    assert LEXICON.speak(None, [present]).find("GIFT", {"present"}) == "present"


def test_word_of_two_labels_is_refused_unless_only_one_is_known() -> None:
    german = LEXICON.speak("de")
    with pytest.raises(AmbiguousWord, match="'Bank' means 'bench', 'bank'"):
        german.find("Bank")
    assert german.find("Bank", {"bench", "couch"}) == "bench"


def test_language_that_none_has_is_refused_unless_it_is_that_of_names_or_the_default() -> None:
    with pytest.raises(UnknownLanguage, match="Known languages: 'de', 'fr', 'pt-BR'"):
        LEXICON.speak("xx")
    with pytest.raises(UnknownLanguage, match="They have no translations"):
        LEXICON.speak("de", [Dictionary(("yak",))], of_sets=True)
    assert LEXICON.speak("en-GB").lang is None
    assert Lexicon(LEXICON.dictionaries, "xx").speak(None).lang is None
    assert Lexicon(LEXICON.dictionaries, "de").speak(None).find("Sofa") == "couch"
    assert Lexicon(LEXICON.dictionaries, "de").speak("en").find("Möbel") is None


@given(st.dictionaries(texts, words))
def test_words_are_read_as_they_were_packed(given: dict[str, Words]) -> None:
    legal = {name: x for name, x in given.items() if any(x) and name not in x.parents}
    packed = pack_words(legal)
    assert parse_words(packed.encode()) == load_words(packed, legal) == legal
    assert load_words(packed, ()) == {}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"labels": [{"name": "a", "parents": ["a"]}]}', "its own parent"),
        ('{"labels": [{"name": "a"}, {"name": "a"}]}', "'a' is there twice"),
        ('{"labels": [{"name": "a", "translations": {"german": "b"}}]}', "language tag"),
        ('{"labels": [{"name": "a", "translations": {"d": "b"}}]}', "language tag"),
        ('{"labels": [{"name": "a", "aliases": ["b\\u202e"]}]}', "invisible"),
        (
            '{"labels": [{"name": "a", "translations": {"de": "b", "DE": "c"}}]}',
            "A language should be there once",
        ),
        ("[]", "words"),
        ("{", "words"),
    ],
)
def test_words_that_are_invalid_are_refused(content: str, reason: str) -> None:
    with pytest.raises(InvalidLabelSet, match=reason):
        parse_words(content.encode())
    assert parse_words(pack_words({"couch": COUCH}).encode()) == {"couch": COUCH}
