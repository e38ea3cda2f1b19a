"""`ml-decoder labels learn`: labels from a folder with a subfolder of photos for each."""

import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.text import Text

from service.bundle.card import format_first_error
from service.cli.console import show_failure, write_json
from service.cli.local_pipeline import PhotoResult, run_pipeline, try_photo
from service.errors import StartError
from service.fields import LabelText, validate
from service.http.responses.examples import LessonAnswer, answer_lesson
from service.images.folders import describe_left_out, explain_none, list_photos
from service.labels.examples import Example
from service.pipeline.pipeline import Pipeline
from service.pipeline.teaching import Taught, embed_photo, make_example
from service.question import Question
from service.scheduling.tasks import collect_in_order
from service.settings import Settings

# The store compares new examples with all earlier ones while others wait: 0.1 s for 200 and 1,000.
_EXAMPLES_PER_WRITE = 200
_label_text: TypeAdapter[str] = TypeAdapter(LabelText)


async def learn_folder(
    settings: Settings, name: str, folder: Path, *, replace: bool, as_json: bool
) -> bool:
    """Teaches labels the photos of their subfolders; returns whether all photos were used."""
    validate(Question, {"label_set": [name]}, "command line")
    found, loose = find_examples(folder)
    left_out = [PhotoResult(path, None, "it is in no subfolder: it has no label") for path in loose]
    async with run_pipeline(settings) as pipeline:
        pipeline.catalogue.teachable(name)  # before the photos, which may take minutes
        for label, paths in found.items():
            taught, unusable = await _learn(pipeline, name, label, paths, replace=replace)
            left_out += unusable
            if taught is not None:
                _show(answer_lesson(taught, label), as_json=as_json)
    for photo in left_out:
        show_failure(photo)
    return not left_out


def find_examples(folder: Path) -> tuple[dict[str, list[Path]], list[Path]]:
    """Returns photos by label, a subfolder, and those in no subfolder; StartError if all are."""
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
    if left_out:
        sys.stderr.write(f"{describe_left_out(left_out)}\n")
    return found, [folder / name for name in names if "/" not in name]


async def _learn(
    pipeline: Pipeline, name: str, label: str, paths: Sequence[Path], *, replace: bool
) -> tuple[Taught | None, list[PhotoResult]]:
    """Returns what a label learnt, None without a usable photo, and the unusable photos."""
    sets, background = pipeline.catalogue.teachable(name), pipeline.catalogue.background
    assert background is not None, "`teachable` has checked it"

    async def embed(photo: bytes) -> Example:
        embedding = await embed_photo(pipeline, photo, pipeline.make_deadline())
        return await make_example(photo, embedding, background)

    works = (try_photo(path, embed) for path in paths)
    found = await collect_in_order(works, pipeline.concurrency)
    rows = zip(paths, found, strict=True)
    unusable = [PhotoResult(path, None, failure) for path, (_, failure) in rows if failure]
    examples = [example for example, _ in found if example]
    if not examples:
        return None, unusable
    prepared, added = await sets.prepare_label(name, label), 0
    for start in range(0, len(examples), _EXAMPLES_PER_WRITE):
        some, forget = examples[start : start + _EXAMPLES_PER_WRITE], replace and start == 0
        learnt = await sets.learn(name, label, prepared, some, (), replace=forget)
        added += learnt.added
    return Taught(learnt.labels, learnt.created, added, len(examples) - added, [], []), unusable


def _show(found: LessonAnswer, *, as_json: bool) -> None:
    if as_json:
        write_json(found.model_dump(exclude={"positive", "negative"}))
        return
    count, new = found.examples.positive, found.examples.added
    line = f": {count} photo{'s' * (count != 1)}, {new} new; {found.separation.meaning}"
    advice = f". {found.advice}" if found.advice else ""
    Console().print(Text.assemble((found.label, "bold"), line, advice), soft_wrap=True)
