"""Names of an open run: labels, concepts from captions, and names held out of the training."""

import re
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from models.data.records import DataError, LabelledFolder, LabelledImage


@dataclass(frozen=True)
class Vocabulary:
    """The names of a run."""

    labels: tuple[str, ...]  # N, known to be present or absent in every photo
    concepts: tuple[str, ...]  # M, known to be present in some photos; elsewhere unknown
    held_out: tuple[str, ...]  # H concepts that only measure how well the head generalises


def choose_names(folder: LabelledFolder, hold_out: Collection[str]) -> Vocabulary:
    """Sorts a data set's names into those to train on and those held out.

    A concept that is also a label counts as a label. Another is held out if its words contain those
    of a name in `hold_out` or the reverse: a `computer mouse` is a `mouse`.
    """
    named = {_clean(name) for image in folder.split("train") for name in image.concepts}
    concepts = sorted(named - set(folder.label_names))
    if not concepts:
        raise DataError(f"data set {folder.name} has no caption_concepts to train on")
    avoided = _find_avoided(folder, hold_out)
    words = {name: _words(name) for name in concepts}
    held_out = [n for n in concepts if any(words[n] <= w or w <= words[n] for w in avoided)]
    kept = sorted(words.keys() - set(held_out))
    return Vocabulary(folder.label_names, tuple(kept), tuple(held_out))


def choose_captions(
    folder: LabelledFolder, images: tuple[LabelledImage, ...], hold_out: Collection[str]
) -> tuple[str, ...]:
    """Returns each photo's caption, or "" if it shares a word with a name held out."""
    avoided = frozenset[str]().union(*_find_avoided(folder, hold_out))
    return tuple("" if _spoken(i.caption) & avoided else i.caption for i in images)


def mark_concepts(images: tuple[LabelledImage, ...], names: tuple[str, ...]) -> Tensor:
    """Returns which photos have which concepts, 0/1 float [len(images), len(names)]."""
    column = {name: i for i, name in enumerate(names)}
    targets = torch.zeros(len(images), len(names))
    for row, image in enumerate(images):
        for name in map(_clean, image.concepts):
            if name in column:
                targets[row, column[name]] = 1
    return targets


def _clean(name: str) -> str:
    """Returns a concept's name without the remark in brackets that separates homonyms."""
    return re.sub(r"\s*\(.*?\)", "", name)


def _words(name: str) -> frozenset[str]:
    return frozenset(_clean(name).lower().split())


def _find_avoided(folder: LabelledFolder, hold_out: Collection[str]) -> list[frozenset[str]]:
    return [_words(name) for name in hold_out if name not in folder.label_names]


def _spoken(caption: str) -> frozenset[str]:
    """Returns the words of a sentence and their possible singulars."""
    words = re.findall(r"\w+", caption.lower())
    return frozenset(words) | {w.removesuffix(end) for w in words for end in ("s", "es")}
