"""Chooses labels from the tags of photos, and which photo shows, lacks or rejects which label."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from service.archive import PhotoTags, Tag
from service.archive.tree import fold_key
from service.bundle.card import fold_name
from service.errors import StartError, quote
from service.fields import LabelText

PRESENT, ABSENT, REJECTED, UNKNOWN = 1, 0, -1, -2
"""Signs of a label on a photo: tagged; not, with other tags; deleted by the user; not known."""

_NOT_CHOSEN = "not chosen"

_label_text = TypeAdapter[str](LabelText)


class TagSigns(NamedTuple):
    """What photos say of labels; those of most photos are first."""

    photos: tuple[str, ...]
    labels: tuple[str, ...]
    signs: NDArray[np.int8]  # [photos, labels]: PRESENT, ABSENT, REJECTED or UNKNOWN
    left_out: dict[str, list[str]]  # tags that are no labels, by the reason
    resolved: dict[str, str]  # the labels of tags that are other words


@dataclass(frozen=True)
class TagChoice:
    """Which tags are labels."""

    level: str | int = "last"  # or a number from 1, of shorter tags the last; `path`: all, by `/`
    # Shell patterns of labels or whole paths; case does not count, `_` is a space.
    only: Sequence[str] = ()
    exclude: Sequence[str] = ()
    least: int = 5  # photos
    trust_kept: bool = False  # names that the user kept count as his

    def __post_init__(self) -> None:
        """Raises StartError for another level."""
        level = str(self.level)
        if level not in ("last", "path") and not (level.isdecimal() and int(level) >= 1):
            raise StartError(f"level must be last, path or a number from 1; it is {quote(level)}")

    def judge(self, tag: Tag) -> tuple[str, str]:
        """Returns a tag's label, and the reason if it is left out."""
        levels = {"last": tag[-1:], "path": tag}.get(str(self.level)) or tag[: int(self.level)][-1:]
        name = "/".join(levels)
        texts = {fold_name(name), fold_name("/".join(tag))}
        if _match(texts, self.exclude):
            return name, "excluded"
        try:
            name = _label_text.validate_python(name)
        except ValidationError as error:
            return name, str(error.errors()[0]["msg"])
        return name, "" if not self.only or _match(texts, self.only) else _NOT_CHOSEN


def choose_labels(
    tags: Mapping[str, PhotoTags], choice: TagChoice, find_label: Callable[[str], str] = str
) -> TagSigns:
    """Returns the labels that enough photos show, and what photos say of them.

    Spellings of a label are one: what `find_label` returns for the most frequent one. In a photo
    with tags of the user, a label without a tag is ABSENT. Excluded tags do not count as such:
    names of people or ratings do not say what else is seen. REJECTED are labels that the user
    deleted and did not add again. Names that he kept count if they are trusted; else they count
    for nothing, so that tags that `bulk` writes do not change what the next fit learns.
    """
    judge = cache(choice.judge)
    users = [{*map(judge, given.users)} for given in tags.values()]
    kept = [
        {(given.labels.get(n, n), judge((n,))[1]) for n in given.kept if choice.trust_kept}
        for given in tags.values()
    ]
    judged = [one | other for one, other in zip(users, kept, strict=True)]
    found = sorted(Counter(pair for pairs in judged for pair in pairs).items(), key=_rank)
    rejected = [name for given in tags.values() for name in given.rejected]
    spelled = [name for (name, reason), _ in reversed(found) if not reason]
    spellings = {fold_key(name): name for name in (*rejected, *spelled)}
    names = {key: find_label(name) for key, name in spellings.items()}
    shown = [{names[fold_key(name)] for name, r in pairs if not r} for pairs in judged]
    counts = Counter(name for some in shown for name in some)
    labels = [name for name, n in sorted(counts.items(), key=_rank) if n >= choice.least]
    columns = {name: column for column, name in enumerate(labels)}

    signs = np.full((len(tags), len(labels)), UNKNOWN, np.int8)
    for row, given, pairs, present in zip(signs, tags.values(), users, shown, strict=True):
        if any(reason in ("", _NOT_CHOSEN) for _, reason in pairs):
            row[:] = ABSENT
        gone = {names[fold_key(name)] for name in given.rejected}
        for sign, some in ((REJECTED, gone), (PRESENT, present)):
            row[[columns[name] for name in some if name in columns]] = sign
    says = (signs != UNKNOWN).any(axis=1)
    rare = f"fewer than {choice.least} photos"
    others = [((name, rare), n) for name, n in counts.items() if n < choice.least]
    left_out = defaultdict[str, list[str]](list)
    for (name, reason), _ in sorted(found + others, key=_rank):
        if reason:
            left_out[reason].append(name)
    other = [key for key in map(fold_key, reversed(spelled)) if fold_key(names[key]) != key]
    resolved = {spellings[key]: names[key] for key in other}
    return TagSigns(tuple(compress(tags, says)), tuple(labels), signs[says], left_out, resolved)


def _rank(counted: tuple[Any, int]) -> tuple[int, Any]:
    return -counted[1], counted[0]


def _match(texts: Collection[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(text, fold_name(pattern)) for pattern in patterns for text in texts)
