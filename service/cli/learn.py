"""`ml-decoder labels learn`: a set learns from a folder with a subfolder of photos for each label.

Photos go through the service's own pipeline.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.text import Text

from service.bundle.card import format_first_error
from service.cli.photos import PhotoResult, run_pipeline, try_photo
from service.errors import StartError
from service.fields import LabelText, validate
from service.http.responses.examples import LessonAnswer, answer_lesson
from service.images.folders import describe_left_out, explain_none, list_photos
from service.labels.examples import Example
from service.pipeline.pipeline import Pipeline
from service.pipeline.teaching import Taught, embed_photo
from service.question import Question
from service.scheduling.tasks import run_in_order
from service.settings import Settings

# The store compares new examples with all earlier ones while others wait: 0.1 s for 200 and 1,000.
_EXAMPLES_PER_WRITE = 200
_label_text: TypeAdapter[str] = TypeAdapter(LabelText)

Show = Callable[[LessonAnswer | PhotoResult], None]
"""Called for each label that has learnt, and each photo that is left out."""


async def learn_folder(
    settings: Settings, name: str, folder: Path, show: Show, *, replace: bool
) -> None:
    """Teaches a set, or a new one, the labels of a folder; `replace` forgets their earlier photos.

    Raises StartError for an unusable folder, and as `Catalogue.teachable`.
    """
    validate(Question, {"label_set": [name]}, "command line")
    found = find_examples(folder, show)
    async with run_pipeline(settings) as pipeline:
        pipeline.catalogue.teachable(name)  # before the photos, which may take minutes
        for label, paths in found.items():
            examples = await _embed(pipeline, paths, show)
            if examples:
                taught = await _learn(pipeline, name, label, examples, replace=replace)
                show(answer_lesson(taught, label))


def find_examples(folder: Path, show: Show) -> dict[str, list[Path]]:
    """Returns the photos in and below each subfolder by label; raises StartError if none."""
    try:
        names, left_out = list_photos(str(folder))
    except OSError as error:
        raise StartError(f"{folder}: {error.strerror or 'cannot be read'}") from error
    found: dict[str, list[Path]] = {}
    for name in (name for name in names if "/" in name):
        label = name.partition("/")[0]
        try:
            found.setdefault(_label_text.validate_python(label), []).append(folder / name)
        except ValidationError as error:
            raise StartError(f"{folder / label}: {format_first_error(error)}") from error
    if not found:
        raise StartError(f"{folder} has no subfolder with photos{explain_none(left_out)}")
    for name in (name for name in names if "/" not in name):
        show(PhotoResult(folder / name, None, "it is in no subfolder, and so has no label"))
    if left_out:
        sys.stderr.write(f"{describe_left_out(left_out)}\n")
    return found


async def _embed(pipeline: Pipeline, paths: Sequence[Path], show: Show) -> list[Example]:
    background = pipeline.catalogue.background
    assert background is not None, "`teachable` has checked it"

    async def embed(photo: bytes) -> Example:
        embedding = await embed_photo(pipeline, photo, pipeline.make_deadline())
        return Example(hashlib.sha256(photo).digest(), background.whiten(embedding[np.newaxis])[0])

    examples = []
    works = (try_photo(path, embed) for path in paths)
    async with aclosing(run_in_order(works, pipeline.concurrency)) as results:
        for path in paths:
            example, failure = await anext(results)
            if example is None:
                show(PhotoResult(path, None, failure))
            else:
                examples.append(example)
    return examples


async def _learn(
    pipeline: Pipeline, name: str, label: str, examples: Sequence[Example], *, replace: bool
) -> Taught:
    sets = pipeline.catalogue.teachable(name)
    prepared, added = await sets.prepare_label(name, label), 0
    for start in range(0, len(examples), _EXAMPLES_PER_WRITE):
        some = examples[start : start + _EXAMPLES_PER_WRITE]
        forget = replace and start == 0
        learnt = await sets.learn(name, label, prepared, some, (), replace=forget)
        added += learnt.added
    return Taught(learnt.labels, learnt.created, added, len(examples) - added, [], [])


def show_lesson(found: LessonAnswer) -> None:
    """Shows what a label has learnt, in one line."""
    count, new = found.examples.positive, found.examples.added
    line = f": {count} photo{'s' * (count != 1)}, {new} new; {found.separation.meaning}"
    advice = f". {found.advice}" if found.advice else ""
    Console().print(Text.assemble((found.label, "bold"), line, advice), soft_wrap=True)
