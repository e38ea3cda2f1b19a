"""Names and targets: what is known of every photo, and under which names.

In: a labelled folder whose photos have concepts from their captions, and names to hold out.
Out: `OpenTargets`. Next: `tokens.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from models.data import DataError, LabelledFolder, LabelledImage, read_labelled_folder


@dataclass(frozen=True)
class Vocabulary:
    """The names of a run.

    Attributes:
        labels: N names that every photo is known to have or not.
        concepts: M names that some photos are known to have; of the others nothing is known.
        held_out: names among the concepts that are not trained on, to choose by.
    """

    labels: tuple[str, ...]
    concepts: tuple[str, ...]
    held_out: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class OpenTargets:
    """What is known of some photos.

    Attributes:
        labels: 0/1 float [n, N], complete.
        concepts: 0/1 float [n, M], a 0 is unknown.
        held_out: the same of the names held out, float [n, H].
    """

    labels: Tensor
    concepts: Tensor
    held_out: Tensor


def choose_names(folder: LabelledFolder, hold_out: Collection[str]) -> Vocabulary:
    """Sorts a data set's names into those to train on and those held out.

    Args:
        folder: the data set; concepts that are labels too count as labels.
        hold_out: names whose concepts are not trained on. A concept also counts as one of
            these where its words are among the other's or the other way round: a `computer
            mouse` is a `mouse`, a `table` may be a `dining table`.

    Raises:
        DataError: the training photos have no concepts.
    """
    seen = {clean(name) for image in folder.split("train") for name in image.concepts}
    concepts = sorted(seen - set(folder.label_names))
    if not concepts:
        raise DataError(f"data set {folder.name} has no caption_concepts to train on")
    avoided = _find_avoided(folder, hold_out)
    out = [name for name in concepts if any(_overlap(words(name), other) for other in avoided)]
    kept = [name for name in concepts if name not in out]
    return Vocabulary(folder.label_names, tuple(kept), tuple(out))


def choose_captions(
    folder: LabelledFolder, images: tuple[LabelledImage, ...], hold_out: Collection[str]
) -> tuple[str, ...]:
    """Returns the caption of each photo, empty where it shares a word with a name held out."""
    avoided = frozenset[str]().union(*_find_avoided(folder, hold_out))
    return tuple("" if _spoken(i.caption) & avoided else i.caption for i in images)


def read_hold_out(path: Path) -> tuple[str, ...]:
    """Reads names to hold out: a text file, one a line, or a labelled folder's label names.

    Raises:
        DataError: it is neither.
    """
    if path.is_dir():
        return read_labelled_folder(path).label_names
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"names to hold out cannot be read from {path}") from error
    return tuple(line.strip() for line in lines if line.strip())


def make_targets(
    folder: LabelledFolder, images: tuple[LabelledImage, ...], names: Vocabulary
) -> OpenTargets:
    """Returns the targets of some of the data set's photos."""
    return OpenTargets(
        torch.from_numpy(folder.targets(images)).float(),
        _mark_concepts(images, names.concepts),
        _mark_concepts(images, names.held_out),
    )


def clean(name: str) -> str:
    """Returns a concept's name without the remark in brackets that tells it from others."""
    return re.sub(r"\s*\(.*?\)", "", name)


def words(name: str) -> frozenset[str]:
    """Returns the words of a name, in lower case."""
    return frozenset(clean(name).lower().split())


def _find_avoided(folder: LabelledFolder, hold_out: Collection[str]) -> list[frozenset[str]]:
    return [words(name) for name in hold_out if name not in folder.label_names]


def _spoken(caption: str) -> frozenset[str]:
    """Returns the words of a sentence and what may be their singulars."""
    found = re.findall(r"\w+", caption.lower())
    return frozenset(found) | {w.removesuffix(end) for w in found for end in ("s", "es")}


def _overlap(first: frozenset[str], second: frozenset[str]) -> bool:
    return first <= second or second <= first


def _mark_concepts(images: tuple[LabelledImage, ...], names: tuple[str, ...]) -> Tensor:
    column = {name: i for i, name in enumerate(names)}
    targets = torch.zeros(len(images), len(names))
    for row, image in enumerate(images):
        for name in map(clean, image.concepts):
            if name in column:
                targets[row, column[name]] = 1
    return targets
