"""Words of labels: aliases, parents and translations, and which labels a word means.

A label's name never changes. Its words describe it, and let questions name it in other ways.
"""

import json
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import not_
from types import MappingProxyType
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo
from pydantic_core import PydanticCustomError

from service.bundle.card import Record, fold_name, format_first_error
from service.errors import AmbiguousWord, InvalidLabelSet, UnknownLanguage, quote
from service.fields import LabelText, LanguageTag

NAMES = "en"
"""The language of which every set has something: the labels' own names."""

Aliases = Annotated[
    tuple[LabelText, ...],
    Field(max_length=20, description="Other words for the label.", exclude_if=not_),
]


def _refuse_own(parents: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    if info.data.get("name") in parents:
        raise PydanticCustomError("own_parent", "A label should not be its own parent")
    return parents


Parents = Annotated[
    tuple[LabelText, ...],
    AfterValidator(_refuse_own),
    Field(max_length=10, description="What it is a kind of, nearest first.", exclude_if=not_),
]
Translations = Annotated[
    dict[LanguageTag, LabelText],
    Field(max_length=50, description="Its name by language tag (BCP 47).", exclude_if=not_),
]


class Words(NamedTuple):
    """The words of one label."""

    aliases: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    translations: Mapping[str, str] = MappingProxyType({})


class NamedWords(Record):
    """A label's name and its words, as JSON."""

    name: LabelText
    aliases: Aliases = ()
    parents: Parents = ()
    translations: Translations = Field(default_factory=dict)

    @property
    def words(self) -> Words | None:
        """The words; None if there are none."""
        words = Words(self.aliases, self.parents, self.translations)
        return words if any(words) else None


class _WordsFile(Record):
    about: str = ""
    labels: list[NamedWords]


def parse_words(content: bytes | str) -> dict[str, Words]:
    """Parses JSON: `about`, a free text, and `labels` with name, aliases, parents, translations.

    A bundle's `words.json`, the store and `.npz` files have it. Raises `InvalidLabelSet`.
    """
    try:
        labels = _WordsFile.model_validate_json(content).labels
    except ValidationError as error:
        raise InvalidLabelSet(f"words: {format_first_error(error, _WordsFile)}") from error
    words: dict[str, Words] = {}
    for label in labels:
        if label.name in words:
            raise InvalidLabelSet(f"words: the label {quote(label.name)} is there twice")
        words[label.name] = label.words or Words()
    return words


def pack_words(words: Mapping[str, Words]) -> bytes:
    """Returns the JSON that `parse_words` reads."""
    labels = [{"name": name, **each._asdict()} for name, each in words.items()]
    return json.dumps({"labels": labels}, ensure_ascii=False, separators=(",", ":")).encode()


class Dictionary:
    """The words of labels and their parents, by name, and the labels that words mean."""

    def __init__(self, names: Iterable[str] = (), words: Mapping[str, Words] | None = None) -> None:
        """`names` are the labels; of parents that are none, only `words` has something."""
        self._names = names
        self.words: Mapping[str, Words] = words or {}
        self._translations: dict[str, dict[str, str]] = {}
        self._meanings: dict[str | None, dict[str, list[str]]] = {}

    @cached_property
    def languages(self) -> tuple[str, ...]:
        """The languages of translations, sorted."""
        return tuple(sorted({tag for each in self.words.values() for tag in each.translations}))

    def find_language(self, lang: str) -> str | None:
        """Returns the language that answers for another: `de` for `de-AT` (lookup of RFC 4647)."""
        while lang and lang not in self.languages:
            lang = lang.rpartition("-")[0]
        return lang or None

    def translate(self, lang: str) -> Mapping[str, str]:
        """Returns name -> translation."""
        tag = self.find_language(lang)
        if tag is None:
            return {}
        if tag not in self._translations:
            pairs = ((name, each.translations.get(tag)) for name, each in self.words.items())
            self._translations[tag] = {name: text for name, text in pairs if text}
        return self._translations[tag]

    def find(self, word: str, lang: str | None) -> Sequence[str]:
        """Returns the names that a word means in a language; None: names and aliases."""
        tag = lang and self.find_language(lang)
        if tag not in self._meanings:
            meanings: defaultdict[str, list[str]] = defaultdict(list)
            for text, name in self.list_words(tag):
                meanings[fold_name(text)].append(name)
            self._meanings[tag] = dict(meanings)
        return self._meanings[tag].get(fold_name(word), ())

    def list_words(self, lang: str | None) -> Iterable[tuple[str, str]]:
        """Yields words of a language, None as above, with the names that they mean."""
        if lang is not None:
            yield from ((text, name) for name, text in self.translate(lang).items())
            return
        yield from ((name, name) for name in dict.fromkeys((*self._names, *self.words)))
        yield from ((text, name) for name, each in self.words.items() for text in each.aliases)


@dataclass(frozen=True)
class Lexicon:
    """Dictionaries to look words up in, and the language of the words."""

    dictionaries: tuple[Dictionary, ...] = ()
    lang: str | None = None  # None: names and aliases alone

    def extend(self, dictionaries: Iterable[Dictionary]) -> "Lexicon":
        """Returns the lexicon with others in front."""
        return Lexicon((*dictionaries, *self.dictionaries), self.lang)

    def speak(self, lang: str | None, asked: int | None = None) -> "Lexicon":
        """Returns the lexicon in another language, which one of the first `asked` must have.

        None keeps the language, if they have it. Raises `UnknownLanguage`.
        """
        chosen, some = lang or self.lang, self.dictionaries[:asked]
        if chosen is None or any(each.find_language(chosen) for each in some):
            return Lexicon(self.dictionaries, chosen)
        if lang is not None and lang.partition("-")[0] != NAMES:
            raise UnknownLanguage(lang, sorted({tag for each in some for tag in each.languages}))
        return Lexicon(self.dictionaries)

    def find(self, word: str, known: Container[str] | None = None) -> str | None:
        """Returns the name, of the `known` if given, that a word means.

        A name means itself, else translations come before names in another spelling and aliases.
        Raises `AmbiguousWord` if a word of one language means several.
        """
        found = [self._list_meanings(word, lang, known) for lang in (None, self.lang)]
        if word in found[0]:
            return word
        meant = found[1] or found[0]
        if len(meant) > 1:
            raise AmbiguousWord(word, tuple(meant))
        return meant[0] if meant else None

    def find_known(self, words: Iterable[str], known: Container[str]) -> dict[str, str]:
        """Returns the known names that words mean; for others, the words themselves, in NFC."""
        names = {}
        for word in words:
            # Names of open labels are in the form NFC; clients may send any form.
            name = word if word in known else unicodedata.normalize("NFC", word).strip()
            names[word] = name if name in known else self.find(name, known) or name
        return names

    def find_elsewhere(self, word: str, known: Container[str]) -> tuple[str, str] | None:
        """Returns a language in which a word means a known name, and this name."""
        languages = dict.fromkeys(tag for each in self.dictionaries for tag in each.languages)
        found = ((tag, name) for tag in languages for name in self._list_meanings(word, tag, known))
        return next(found, None)

    def list_words(self, known: Collection[str]) -> list[str]:
        """Returns words that mean known names, those of the language first, and the names."""
        each = (
            (lang, some) for lang in dict.fromkeys((self.lang, None)) for some in self.dictionaries
        )
        pairs = (pair for lang, some in each for pair in some.list_words(lang))
        return list(dict.fromkeys([*(text for text, name in pairs if name in known), *known]))

    def describe(self, names: Mapping[str, str]) -> dict[str, Words]:
        """Returns the words of labels, by the words that mean them, and those of their parents."""
        described = {word: self._get(name) for word, name in names.items()}
        parents = {parent for each in described.values() if each for parent in each.parents}
        known = {parent: self._get(parent) for parent in parents} | described
        return {name: each for name, each in known.items() if each is not None}

    def _get(self, name: str) -> Words | None:
        return next((d.words[name] for d in self.dictionaries if name in d.words), None)

    def _list_meanings(
        self, word: str, lang: str | None, known: Container[str] | None
    ) -> list[str]:
        names = dict.fromkeys(name for each in self.dictionaries for name in each.find(word, lang))
        return [name for name in names if known is None or name in known]
