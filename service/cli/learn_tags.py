"""`ml-decoder labels learn --from-tags`: all labels of an archive from the tags of its photos."""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import compress
from pathlib import Path

import numpy as np

from service.archive import PhotoTags
from service.archive.choice import PRESENT, TagChoice, TagSigns, choose_labels
from service.archive.tables import read_tag_table
from service.archive.tree import fold_key
from service.cli.console import show_progress
from service.cli.fit_report import TagFit, show_fits, write_report
from service.cli.local_pipeline import PhotoResult, run_pipeline, use_photos
from service.engine.heads import LogitsArray, ZeroHead
from service.errors import AmbiguousWord, LabelSetChanged, StartError, escape, list_names
from service.images.folders import list_photos
from service.labels.label_set import LabelSet
from service.labels.registered_sets import RegisteredSets
from service.labels.sources.fit import Fit
from service.labels.sources.ridge import MIN_PHOTOS, fit_labels
from service.labels.whitening import Vector
from service.labels.words import Lexicon, Words
from service.settings import Settings

_MOST_SIGNS = 30_000_000  # of photos and labels: 160 bytes each


@dataclass(frozen=True)
class TagLesson:
    """Arguments of the command."""

    photos: Path
    table: Path | None  # else the photos' own tags
    choice: TagChoice
    lang: str | None  # of tags, beside the labels' names; None: that of the settings
    precision_target: float | None  # 0..1; None: best F1
    keeps_all: bool  # also labels that cannot be told apart
    report: Path | None
    dry_run: bool
    as_json: bool


async def learn_tags(settings: Settings, name: str, lesson: TagLesson) -> list[PhotoResult]:
    """Fits labels to tags, shows and writes them. Returns the photos that are not used."""
    if (file := lesson.report) and not (
        file.suffix == ".html" and file.parent.is_dir() and (file.is_file() or not file.exists())
    ):
        raise StartError(f"--report {file}: name an .html file in an existing folder")
    tags, left_out = _read_tags(lesson)
    async with run_pipeline(settings) as pipeline:
        sets, whitening = pipeline.catalogue.for_learning(name)
        known = pipeline.catalogue.get(name)
        own = {fold_key(label): label for label in (known.names if known else ())}
        spoken = [known.dictionary] if known else []
        lexicon = pipeline.catalogue.lexicon.speak(lesson.lang, spoken)
        tags = dict(sorted(tags.items()))  # neighbours may be nearly the same photo
        chosen = choose_labels(tags, lesson.choice, partial(_find_label, lexicon, own))
        _check(chosen, lesson.choice.least)
        prepared = await sets.prepare_labels(name, chosen.labels)
        queries = prepared.queries
        head = ZeroHead(len(chosen.labels)) if queries is None else queries

        async def embed(photo: bytes) -> tuple[Vector, LogitsArray]:
            embedding, (logits,) = await pipeline.embed(photo, pipeline.make_deadline(), head)
            assert isinstance(logits, np.ndarray)
            return embedding, logits

        paths = [lesson.photos / photo for photo in chosen.photos]
        with show_progress(results_on_stdout=False) as show:
            embedded, unusable = await use_photos(pipeline, paths, embed, show)
        left_out += unusable
        usable = [path in embedded for path in paths]
        signs = chosen.signs[usable]
        columns = np.flatnonzero((signs == PRESENT).sum(axis=0) >= lesson.choice.least)
        if len(signs) < MIN_PHOTOS or not len(columns):
            raise StartError(f"{len(unusable)} photos cannot be used, such as {unusable[0].path}")
        labels, signs = [chosen.labels[column] for column in columns], signs[:, columns]
        embeddings, logits = zip(*embedded.values(), strict=True)
        asked = None if queries is None else queries[columns]
        texts = None if asked is None else (asked, np.stack(logits)[:, columns])
        data = np.stack(embeddings), signs, whitening, texts
        found = await asyncio.to_thread(fit_labels, *data, lesson.precision_target)
        kept = found.told_apart | lesson.keeps_all
        figures = [fit.figures for fit in found.fits]
        fits = [*map(TagFit, labels, figures, kept.tolist(), found.scores.T, signs.T)]
        show_fits(name, fits, as_json=lesson.as_json)
        _name_missed(fits, lesson.precision_target)
        if lesson.report is not None:
            write_report(lesson.report, name, fits, [*embedded], lesson.photos)
        if kept.any() and not lesson.dry_run:
            learnt = dict(zip(compress(labels, kept), compress(found.fits, kept), strict=True))
            words = {n: w for n in learnt if fold_key(n) not in own and (w := lexicon.get(n))}
            await _write(sets, name, learnt, words)
    return left_out


def _read_tags(lesson: TagLesson) -> tuple[dict[str, PhotoTags], list[PhotoResult]]:
    """Returns the tags of photos by name, and photos whose tags cannot be read."""
    if lesson.table is not None:
        tags, missing = read_tag_table(lesson.table, lesson.photos)
        if missing:
            listed = list_names(missing)
            sys.stderr.write(f"photos of the table that are missing: {len(missing)}: {listed}\n")
        return tags, []
    from service.archive.users import read_photo_tags

    tags, unread = {}, []
    names, _ = list_photos(str(lesson.photos))
    with show_progress(results_on_stdout=False) as show:
        for done, name in enumerate(names, start=1):
            path = lesson.photos / name
            try:
                tags[name] = read_photo_tags(path)
            except (OSError, ValueError) as error:
                unread.append(PhotoResult(path, None, f"its tags cannot be read: {error}"))
            show(done, len(names))
    return tags, unread


def _find_label(lexicon: Lexicon, own: Mapping[str, str], tag: str) -> str:
    """Returns the label of the set, `own` by key, or of the bundle that a tag means, or the tag."""
    with suppress(AmbiguousWord):
        tag = own.get(fold_key(tag)) or lexicon.find(tag) or tag
    return own.get(fold_key(tag), tag)


def _check(chosen: TagSigns, least: int) -> None:
    """Raises StartError if photos or labels are too few or too many; names tags left out."""
    photos, labels = chosen.signs.shape
    if not labels or photos < MIN_PHOTOS:
        raise StartError(
            f"{photos} photos have tags to learn from, {labels} tags are on {least} photos or "
            f"more: tag at least {MIN_PHOTOS} photos, lower --least, or change --only and --exclude"
        )
    if photos * labels > _MOST_SIGNS:
        raise StartError(f"{photos} photos with {labels} tags are too many: raise --least")
    sys.stderr.writelines(f"{escape(': '.join(pair))}\n" for pair in chosen.resolved.items())
    for reason, names in chosen.left_out.items():
        sys.stderr.write(f"left out: {len(names)} tags, {reason}: {list_names(names)}\n")


def _name_missed(fits: Sequence[TagFit], target: float | None) -> None:
    points = [(fit.label, fit.figures.points["calibrated"].precision) for fit in fits]
    missed = [label for label, precision in points if target and (precision or 0) < target]
    if missed:
        reason = f"{len(missed)} labels, which have the threshold of best F1"
        sys.stderr.write(f"precision {target:g} not reached by {reason}: {list_names(missed)}\n")


async def _write(
    sets: RegisteredSets,
    name: str,
    fits: Mapping[str, Fit],
    words: dict[str, Words],
    tries: int = 3,
) -> None:
    """Writes fits that are new, again if another command writes meanwhile; names the replaced."""
    prepared = await sets.prepare_labels(name, [*fits])
    queries = prepared.queries if prepared.queries is not None else [None] * len(fits)
    if any(not fit.is_of(query) for fit, query in zip(fits.values(), queries, strict=True)):
        raise LabelSetChanged(name, str(prepared.version))
    known = sets.by_name.get(name)
    old = known.lessons if known else {}
    new = {
        label: fit
        for label, fit in fits.items()
        if not (isinstance(each := old.get(label, {}).get(Fit.kind), Fit) and fit.is_like(each))
    }
    if not new:
        sys.stderr.write("the tags teach nothing new: nothing was written\n")
        return
    try:
        # Labels that the set lacks are all new.
        await sets.teach(name, prepared._replace(words=words), new)
    except LabelSetChanged:
        if tries == 1:
            raise
        await _write(sets, name, fits, words, tries - 1)
    else:
        if known is not None:
            _name_changes(known, new, fits)


def _name_changes(known: LabelSet, new: Mapping[str, Fit], fits: Mapping[str, Fit]) -> None:
    own = dict(zip(known.names, known.own_thresholds, strict=True))
    old = known.lessons
    if replaced := [label for label in new if label in old or own.get(label) is not None]:
        what = f"what {len(replaced)} labels had learnt, and their thresholds"
        sys.stderr.write(f"replaced: {what}: {list_names(replaced)}\n")
    if left := [label for label, some in old.items() if Fit.kind in some and label not in fits]:
        step = f"DELETE /labels/{known.name}/examples?label=NAME forgets it"
        line = f"kept from earlier tags: what {len(left)} labels had learnt: {list_names(left)}"
        sys.stderr.write(f"{line}; {step}\n")
    if known.ranked and known.num_labels > len(fits):
        reason = "labels that learnt nothing were ranked, and now need a score of 0.5"
        sys.stderr.write(f"{known.name}: {reason}\n")
