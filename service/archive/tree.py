"""Labels as tags: below a root and their parents, in the language of a run."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from service.archive import SEPARATOR, Tag
from service.bundle.card import fold_name


class TagTree:
    """Makes tags of labels; `words` is that of `describe_words`."""

    def __init__(self, root: Tag, words: Mapping[str, Any]) -> None:
        self.root = root
        self._words = words
        self._find_level = cache(self._read_level)

    def make_tags(self, labels: Iterable[str], rejected: Iterable[str]) -> list[Tag]:
        """Returns tags, without labels and levels of which the user deleted one of the names."""
        gone = {*map(fold_key, rejected)}
        tags = []
        for label in labels:
            parents = self._words.get(label, {}).get("parents", ())
            levels = [*map(self._find_level, (*parents[::-1], label))]
            if gone.isdisjoint(levels[-1][1]):
                tags.append((*self.root, *(text for text, keys in levels if not gone & keys)))
        return tags

    def _read_level(self, name: str) -> tuple[str, frozenset[str]]:
        """Returns what is written for a name, and the keys of all its names."""
        words = self._words.get(name, {})
        text = words.get("translation", name)
        return text, frozenset(map(fold_key, (name, text, *words.get("names", ()))))


def fold_key(name: str) -> str:
    """Returns what spellings of a label have in common, also with that in a sidecar."""
    return fold_name(SEPARATOR.sub("-", name))
