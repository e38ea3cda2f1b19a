"""`ml-decoder labels learn`: labels from a folder with a subfolder of photos for each."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.text import Text

from service.bundle.card import format_first_error
from service.cli.console import write_json
from service.cli.local_pipeline import PhotoResult, run_pipeline, use_photos
from service.errors import StartError
from service.fields import LabelText
from service.images.folders import describe_left_out, explain_none, list_photos
from service.labels.registered_sets import LearntLabel
from service.labels.sources.examples import Example
from service.pipeline.learning import describe_learnt, make_example
from service.pipeline.pipeline import Pipeline
from service.settings import Settings

# The store compares new examples with all earlier ones while others wait: 0.1 s for 200 and 1,000.
_EXAMPLES_PER_WRITE = 200
_label_text: TypeAdapter[str] = TypeAdapter(LabelText)


async def learn_folder(
    settings: Settings, name: str, folder: Path, *, replace: bool, as_json: bool
) -> list[PhotoResult]:
    """Learns labels from the photos of their subfolders. Returns the photos that are not used."""
    labels, loose = find_examples(folder)
    left_out = [PhotoResult(path, None, "it is in no subfolder: it has no label") for path in loose]
    async with run_pipeline(settings) as pipeline:
        pipeline.catalogue.for_learning(name)  # before the photos, which may take minutes
        for label, paths in labels.items():
            result, unusable = await _learn(pipeline, name, label, paths, replace=replace)
            left_out += unusable
            if result is not None:
                _show(describe_learnt(result, label), as_json=as_json)
    return left_out


def find_examples(folder: Path) -> tuple[dict[str, list[Path]], list[Path]]:
    """Returns photos by label, a subfolder, and those in none; `StartError` if all are."""
    names, left_out = list_photos(str(folder))
    labels: dict[str, list[Path]] = {}
    for name in (name for name in names if "/" in name):
        label = name.partition("/")[0]
        try:
            labels.setdefault(_label_text.validate_python(label), []).append(folder / name)
        except ValidationError as error:
            raise StartError(f"{folder / label}: {format_first_error(error)}") from error
    if not labels:
        raise StartError(f"{folder} has no subfolder with photos{explain_none(left_out)}")
    if left_out:
        sys.stderr.write(f"{describe_left_out(left_out)}\n")
    return labels, [folder / name for name in names if "/" not in name]


async def _learn(
    pipeline: Pipeline, name: str, label: str, paths: Sequence[Path], *, replace: bool
) -> tuple[LearntLabel | None, list[PhotoResult]]:
    """Returns what a label learnt, None without a usable photo, and the unusable photos."""
    sets, whitening = pipeline.catalogue.for_learning(name)

    async def embed(photo: bytes) -> Example:
        embedding, _ = await pipeline.embed(photo, pipeline.make_deadline())
        return await make_example(photo, embedding, whitening)

    used, unusable = await use_photos(pipeline, paths, embed)
    examples = [*used.values()]
    if not examples:
        return None, unusable
    prepared, added = await sets.prepare_labels(name, [label]), 0
    for start in range(0, len(examples), _EXAMPLES_PER_WRITE):
        some, is_first = examples[start : start + _EXAMPLES_PER_WRITE], start == 0
        learnt = await sets.learn(name, label, prepared, some, (), replace=replace and is_first)
        added += learnt.added
    return learnt._replace(added=added, repeated=len(examples) - added), unusable


def _show(learnt: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        write_json(learnt)
        return
    count, new = learnt["examples"]["positive"], learnt["examples"]["added"]
    line = f": {count} photo{'s' * (count != 1)}, {new} new; {learnt['separation']['meaning']}"
    advice = f". {learnt['advice']}" if learnt["advice"] else ""
    Console().print(Text.assemble((learnt["label"], "bold"), line, advice), soft_wrap=True)
