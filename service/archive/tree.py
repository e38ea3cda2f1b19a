"""Labels as tags: below a root and their parents, in the language of a run."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from service.archive import SEPARATOR, Tag
from service.bundle.card import fold_name


def make_tags(
    root: Tag, words: dict[str, Any], labels: Iterable[str], deleted: Iterable[str], users: set[str]
) -> dict[Tag, str]:
    """Returns tags with their labels; `words` is that of `describe_words`, `users` has keys.

    Labels have no tag, if the user deleted or has one of their names; levels, if he deleted one.
    """
    gone = {*map(fold_key, deleted)}

    def list_keys(name: str) -> set[str]:
        row = words.get(name, {})
        return {*map(fold_key, (name, row.get("translation", name), *row.get("names", ())))}

    tags = dict[Tag, str]()
    for label in labels:
        keys, parents = list_keys(label), words.get(label, {}).get("parents", ())
        if keys.isdisjoint(gone) and keys.isdisjoint(users):
            path = [name for name in (*parents[::-1], label) if gone.isdisjoint(list_keys(name))]
            levels = (words.get(name, {}).get("translation", name) for name in path)
            tags.setdefault((*root, *levels), label)
    return tags


@lru_cache(1 << 16)  # names of the same labels, for each photo
def fold_key(name: str) -> str:
    """Returns what spellings of a label have in common, also with that in a sidecar."""
    return fold_name(SEPARATOR.sub("-", name))
