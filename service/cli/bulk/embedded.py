"""`bulk --from`: answers from the embeddings of an earlier run, for labels that need no more."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from service.cli.bulk.parts import ENCODER, PartFolder, Record, make_record, open_results
from service.engine.engine import Engine
from service.errors import StartError, list_names
from service.pipeline.pipeline import Pipeline
from service.pipeline.prediction import Prediction, Timings
from service.pipeline.scoring import score_labels
from service.pipeline.selection import Selection

_ROWS_PER_RUN = 256
_NO_TIMES = Timings(0.0, 0.0, 0.0, 0.0)


def open_earlier(location: str) -> tuple[PartFolder, list[str], int]:
    """Returns the results of a run with embeddings, its photos, and 0 left out; or StartError."""
    earlier = None
    with suppress(StartError):
        earlier = open_results(location)
    if earlier is None or not isinstance(earlier.question.get(ENCODER), str):
        raise StartError(f"{location} has no embeddings: run bulk --embeddings on the photos first")
    return earlier, list(earlier.read_done()), 0


def prepare_answers(
    pipeline: Pipeline, selection: Selection, earlier: PartFolder
) -> Callable[[Sequence[str]], AsyncGenerator[Record]]:
    """Returns a function that yields records; raises StartError if labels need the photos."""
    if earlier.question[ENCODER] != pipeline.bundle.encoder_fingerprint:
        step = "use its bundle, or run bulk --embeddings on the photos again"
        raise StartError(f"{earlier.folder} has embeddings of another encoder: {step}")
    towers = pipeline.bundle.card.has_two_towers
    parts = [p for p in selection.parts if p.labels.source.needs_tokens(two_towers=towers)]
    others = [part.labels.names[position] for part in parts for position in part.chosen]
    if others:
        raise StartError(
            f"--from cannot answer {len(others)} label(s) that need the photos: "
            f"{list_names(others)}: leave them out, or run bulk on the photos"
        )
    return partial(_answer, pipeline, selection, earlier)


async def _answer(
    pipeline: Pipeline, selection: Selection, earlier: PartFolder, names: Sequence[str]
) -> AsyncGenerator[Record]:
    engine = pipeline.engine
    assert isinstance(engine, Engine)
    for rows in earlier.read_embedded(names, _ROWS_PER_RUN):
        embeddings = rows.column("embedding").to_numpy(zero_copy_only=False)
        usable = [embedding for embedding in embeddings if embedding is not None]
        scored = iter(engine.score(np.stack(usable), selection.heads) if usable else ())
        records = rows.drop_columns(["embedding"]).to_pylist()
        for record, embedding in zip(records, embeddings, strict=True):
            if embedding is not None:
                labels = score_labels(next(scored).logits, selection, embedding)
                prediction = Prediction(record["width"], record["height"], labels, _NO_TIMES)
                record = make_record(record["photo"], prediction)
            yield record
