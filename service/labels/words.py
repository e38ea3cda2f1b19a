"""Words of labels: aliases, parents and translations, and which labels a word means.

A label's name never changes. Its words describe it, and let questions name it in other ways.
"""

import json
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import not_
from types import MappingProxyType
from typing import Annotated, NamedTuple

from pydantic import (
    AfterValidator,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from service.bundle.card import Record, fold_name, format_first_error
from service.errors import AmbiguousWord, InvalidLabelSet, UnknownLanguage, quote
from service.fields import LabelText, LanguageTag

NAMES = "en"
"""The language of which every set has something: the labels' own names."""
_MAX_LABELS = 100_000


def _refuse_repeated(value: object, validate: ValidatorFunctionWrapHandler) -> dict[str, str]:
    texts: dict[str, str] = validate(value)
    if isinstance(value, dict) and len(texts) < len(value):
        raise PydanticCustomError("repeated_language", "A language should be there once")
    return texts


Aliases = Annotated[
    list[LabelText],
    Field(max_length=20, fail_fast=True, description="Other words for the label.", exclude_if=not_),
]


def _refuse_own(parents: list[str], info: ValidationInfo) -> list[str]:
    if info.data.get("name") in parents:
        raise PydanticCustomError("own_parent", "A label should not be its own parent")
    return parents


Parents = Annotated[
    list[LabelText],
    Field(
        max_length=10,
        fail_fast=True,
        description="What it is a kind of, nearest first.",
        exclude_if=not_,
    ),
    AfterValidator(_refuse_own),
]
Translations = Annotated[
    dict[LanguageTag, LabelText],
    Field(max_length=50, description="Its name by language tag (BCP 47).", exclude_if=not_),
    WrapValidator(_refuse_repeated),
]


class Words(NamedTuple):
    """The words of one label."""

    aliases: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    translations: Mapping[str, str] = MappingProxyType({})


class NamedWords(Record):
    """A label's name and its words, as JSON."""

    name: LabelText
    aliases: Aliases = Field(default_factory=list)
    parents: Parents = Field(default_factory=list)
    translations: Translations = Field(default_factory=dict)


class _WordsFile(Record):
    about: str = ""
    labels: list[NamedWords] = Field(max_length=_MAX_LABELS, fail_fast=True)


def collect_words(labels: Iterable[NamedWords]) -> dict[str, Words]:
    """Returns the words of labels that have some, by name."""
    words = ((x.name, Words(tuple(x.aliases), tuple(x.parents), x.translations)) for x in labels)
    return {name: each for name, each in words if any(each)}


def choose_words(words: Mapping[str, Words], names: Iterable[str]) -> dict[str, Words]:
    """Returns the words of these labels."""
    return {name: words[name] for name in names if name in words}


def parse_words(content: bytes) -> dict[str, Words]:
    """Parses JSON: `about`, a free text, and `labels` with name, aliases, parents, translations.

    A bundle's `words.json` and `.npz` files have it. Raises `InvalidLabelSet`.
    """
    try:
        labels = _WordsFile.model_validate_json(content).labels
    except ValidationError as error:
        raise InvalidLabelSet(f"words: {format_first_error(error, _WordsFile)}") from error
    name, count = Counter(label.name for label in labels).most_common(1)[0] if labels else ("", 0)
    if count > 1:
        raise InvalidLabelSet(f"words: the label {quote(name)} is there twice")
    return collect_words(labels)


def pack_words(words: Mapping[str, Words]) -> str:
    """Returns the JSON that `parse_words` reads."""
    labels = [{"name": n, **{k: v for k, v in x._asdict().items() if v}} for n, x in words.items()]
    return json.dumps({"labels": labels}, ensure_ascii=False, separators=(",", ":"))


def load_words(text: str, names: Container[str]) -> dict[str, Words]:
    """Returns words of these labels from JSON of `pack_words`, of which only the types are checked.

    `parse_words` takes six times as long, 2.8 s for 50,000 labels. Raises ValueError, KeyError,
    TypeError, AttributeError or RecursionError for other JSON.
    """
    words = {}
    for row in json.loads(text)["labels"] if text else ():
        if (name := row["name"]) in names:
            aliases, parents = row.get("aliases", []), row.get("parents", [])
            translations = row.get("translations", {})
            if not {list} == {type(aliases), type(parents)}:
                raise TypeError("lists")
            if not all(isinstance(x, str) for x in (*aliases, *parents, *translations.values())):
                raise TypeError("texts")
            words[name] = Words(tuple(aliases), tuple(parents), translations)
    return words


class Dictionary:
    """The words of labels, by name, and the labels that words mean."""

    def __init__(
        self, names: Iterable[str] = (), words: Mapping[str, Words] | None = None, text: str = ""
    ) -> None:
        """`words` may have names that are no labels; `text` is the JSON that they were read of."""
        self._names = names
        self.words: Mapping[str, Words] = words or {}
        self.text = text
        self._meanings: dict[tuple[str, ...] | None, dict[str, list[str]]] = {}

    @cached_property
    def languages(self) -> tuple[str, ...]:
        """The languages of translations, sorted."""
        return tuple(sorted({tag for each in self.words.values() for tag in each.translations}))

    def find_languages(self, lang: str) -> tuple[str, ...]:
        """Returns the languages that answer for one: of `de-AT`, that and `de` (RFC 4647)."""
        parts = lang.split("-")
        tags = ("-".join(parts[:end]) for end in range(len(parts), 0, -1))
        return tuple(tag for tag in tags if tag in self.languages)

    def translate(self, name: str, lang: str) -> str | None:
        """Returns the translation of a name."""
        if (words := self.words.get(name)) is None:
            return None
        texts = map(words.translations.get, self.find_languages(lang))
        return next(filter(None, texts), None)

    def find(self, key: str, lang: str | None) -> Sequence[str]:
        """Returns the names that a word, folded, means in a language; None: names and aliases."""
        tags = None if lang is None else self.find_languages(lang)
        if tags not in self._meanings:
            meanings: defaultdict[str, list[str]] = defaultdict(list)
            for text, name in self.list_words(lang):
                meanings[fold_name(text)].append(name)
            self._meanings[tags] = dict(meanings)
        return self._meanings[tags].get(key, ())

    def list_words(self, lang: str | None) -> Iterator[tuple[str, str]]:
        """Yields words of a language, None as above, with the names that they mean."""
        if lang is not None:
            tags, rows = self.find_languages(lang), self.words.items()
            pairs = ((x.translations.get(tag), name) for name, x in rows for tag in tags)
            yield from ((text, name) for text, name in pairs if text)
            return
        parents = (parent for each in self.words.values() for parent in each.parents)
        yield from ((name, name) for name in dict.fromkeys((*self._names, *self.words, *parents)))
        yield from ((text, name) for name, each in self.words.items() for text in each.aliases)


@dataclass(frozen=True)
class Lexicon:
    """Dictionaries to look words up in, and the language of the words."""

    dictionaries: tuple[Dictionary, ...] = ()
    lang: str | None = None  # None: names and aliases alone

    def speak(
        self, lang: str | None, sets: Iterable[Dictionary] = (), *, of_sets: bool = False
    ) -> "Lexicon":
        """Returns the lexicon with others in front, in a language that one of them must have.

        None keeps the language, if they have it; with `of_sets`, one of the `sets` must have it.
        Raises `UnknownLanguage`.
        """
        own = tuple(sets)
        every = tuple(dict.fromkeys((*own, *self.dictionaries)))  # the bundle's are in both
        asked, chosen = own if of_sets else every, lang or self.lang
        if chosen is None or any(each.find_languages(chosen) for each in asked):
            return Lexicon(every, chosen)
        if lang is not None and lang.partition("-")[0] != NAMES:
            raise UnknownLanguage(lang, sorted({tag for each in asked for tag in each.languages}))
        return Lexicon(every)

    def get(self, name: str) -> Words | None:
        """Returns the words of a name."""
        return next((d.words[name] for d in self.dictionaries if name in d.words), None)

    def translate(self, name: str) -> str:
        """Returns a name in the language, or as it is."""
        lang = self.lang
        texts = (d.translate(name, lang) for d in self.dictionaries if lang is not None)
        return next(filter(None, texts), name)

    def find(self, word: str, known: Container[str] | None = None) -> str | None:
        """Returns the name, of the `known` if given, that a word means.

        A name means itself, else translations come before names in another spelling and aliases.
        Raises `AmbiguousWord` if a word of one language means several.
        """
        key, found = fold_name(word), []
        for lang in (None, self.lang):
            names = dict.fromkeys(n for each in self.dictionaries for n in each.find(key, lang))
            found.append([name for name in names if known is None or name in known])
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
        key = fold_name(word)
        rows = ((n, x) for each in self.dictionaries for n, x in each.words.items() if n in known)
        texts = ((tag, name, t) for name, x in rows for tag, t in x.translations.items())
        return next(((tag, name) for tag, name, text in texts if text.casefold() == key), None)

    def list_like(self, known: Collection[str]) -> list[list[str]]:
        """Returns what a misspelt word may be: words of the language, and names with aliases."""
        languages = dict.fromkeys((self.lang, None))
        pairs = ([p for d in self.dictionaries for p in d.list_words(lang)] for lang in languages)
        return [[text for text, name in some if name in known] for some in pairs]
