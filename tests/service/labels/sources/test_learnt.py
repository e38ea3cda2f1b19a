"""Lessons of any kind: one that only this file knows is stored, served, described and exported."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytest
from numpy.typing import NDArray

from service.bundle.card import MeasuredThreshold
from service.errors import InvalidLabelSet, LabelSetChanged
from service.fields import Purpose
from service.labels.builder import LabelSetBuilder
from service.labels.definition import Definition
from service.labels.encoders import LabelEncoders
from service.labels.files import pack_label_set, parse_label_set
from service.labels.label_set import LabelSet
from service.labels.registered_sets import RegisteredSets
from service.labels.sources.fit import Fit, FitFigures
from service.labels.sources.learnt import KINDS, list_contents
from service.labels.sources.source import Point, Taught
from service.labels.whitening import Whitening
from service.pipeline.scoring import score_labels
from service.pipeline.selection import select_labels
from service.question import Question
from tests.support.label_store import FlakyStore, define, make_examples, make_photos
from tests.support.tiny_bundle import WIDTH

pytestmark = pytest.mark.anyio

PHOTOS = make_photos()
PHOTO = np.full(WIDTH, WIDTH**-0.5, np.float32)


@dataclass(frozen=True, eq=False)
class MadeUp:
    """Adds one number of the photo's embedding, times ten."""

    number: int

    kind: ClassVar[str] = "made_up"

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        if not content.isdigit():
            raise InvalidLabelSet("damaged")
        return cls(int(content))

    def to_bytes(self) -> bytes:
        return b"%d" % self.number

    def teach(self, whitening: Whitening, query: object, *, has_logit: bool) -> Taught:  # noqa: ARG002
        vector = 10 * np.eye(whitening.width, dtype=np.float32)[self.number]
        return Taught(self, vector, 0.5 * has_logit, {"number": self.number})


def make_fit(query: NDArray[np.float32] | None = None, **points: Point) -> Fit:
    usual: dict[Any, Point] = {"calibrated": Point(threshold=0.25, precision=0.5, recall=1.0)}
    figures = FitFigures(
        **{"photos": 40, "positive": 12, "negative": 3, "text_ap": 0.25},
        **{"learnt_ap": 0.5, "scale": 2.0, "shift": -1.0},
        points=usual | points,
    )
    return Fit(np.arange(WIDTH, dtype=np.float32) / WIDTH, figures, query)


def score(labels: LabelSet, logits: list[float]) -> dict[str, tuple[float, float, str]]:
    """Returns logit, threshold and source of each label."""
    selection = select_labels([labels], Question(top_k=9))
    found = score_labels([np.array(logits, np.float32)], selection, PHOTO)
    return {x.label: (np.log(x.score / (1 - x.score)), x.threshold, x.source) for x in found}


async def run_sets(path: Path, encoders: LabelEncoders | None) -> RegisteredSets:
    store = FlakyStore(str(path), **({} if encoders else {"space": "examples"}))
    sets = RegisteredSets(store, LabelSetBuilder(encoders, PHOTOS), 60.0, ())
    await sets.start()
    return sets


@pytest.mark.parametrize("has_text", [True, False])
async def test_kind_of_one_file_is_stored_served_described_and_exported(
    tmp_path: Path, encoders: LabelEncoders, monkeypatch: pytest.MonkeyPatch, has_text: bool
) -> None:
    monkeypatch.setitem(KINDS, MadeUp.kind, MadeUp)
    sets = await run_sets(tmp_path / "a.db", encoders if has_text else None)
    taught = await sets.teach(
        "pets", await sets.prepare_labels("pets", ["cat"]), {"cat": MadeUp(3)}
    )
    other = await run_sets(tmp_path / "a.db", encoders if has_text else None)
    for labels in (taught, other.by_name["pets"]):
        expected = 10 * WIDTH**-0.5 + 0.5 * has_text
        logit, _, source = score(labels, [0.0])["cat"]
        assert (source, logit) == ("made_up", pytest.approx(expected))
        (described,) = labels.describe()["labels"]
        assert (described["made_up"], labels.num_learnt) == ({"number": 3}, 1)
    entry, _ = await sets.read_definition("pets")
    packed = pack_label_set(entry.definition, entry.embeddings)
    read = parse_label_set(packed, ".npz", "pets")
    assert list_contents(read.lessons) == [("cat", "made_up", b"3")]
    monkeypatch.delitem(KINDS, MadeUp.kind)
    with pytest.raises(InvalidLabelSet, match="does not know"):
        parse_label_set(packed, ".npz", "pets")
    old = await run_sets(tmp_path / "a.db", encoders if has_text else None)
    assert (old.by_name["pets"].learnt, old.by_name["pets"].unused_lessons) == (None, {"cat"})
    assert (await sets.delete_examples("pets", "cat")).learnt is None
    for each in (sets, other, old):
        await each.stop()


async def test_fit_scales_the_text_and_examples_are_added_until_the_next_fit(
    tmp_path: Path, encoders: LabelEncoders
) -> None:
    sets = await run_sets(tmp_path / "a.db", encoders)
    await sets.register(define("pets", "cat", "dog"))
    await sets.calibrate("pets", {"cat": 0.9})
    fit = make_fit(precise=Point(threshold=0.75), recall=Point(threshold=0.125, precision=0.5))
    before = score(sets.by_name["pets"], [1.0, 1.0])
    prepared = await sets.prepare_labels("pets", ["cat", "yak"])
    cat, yak = (replace(fit, query=query) for query in prepared.queries)
    taught = await sets.teach("pets", prepared, {"cat": cat, "yak": yak})
    added = float(fit.vector @ PHOTO)
    found = score(taught, [1.0, 1.0, 1.0])
    assert found["dog"] == before["dog"]
    assert found["cat"] == (pytest.approx(2.0 - 1.0 + added, rel=1e-5), 0.25, "fit")
    assert (taught.own_thresholds, taught.calibrated.tolist()) == ((None,) * 3, [True, False, True])
    assert taught.use("precise") is None, "neither the head nor `dog` has it"
    shared = MeasuredThreshold(threshold=0.625, precision=1.0, recall=1.0)
    measured = replace(taught, shared=dict.fromkeys(("precise", "recall"), shared))
    purposes: list[tuple[Purpose, float, bool]] = [
        ("precise", 0.75, False),
        ("recall", 0.125, True),
    ]
    for purpose, threshold, is_own in purposes:
        used = measured.use(purpose)
        assert used is not None
        assert used.thresholds.tolist() == [threshold, 0.625, threshold]
        assert used.calibrated.tolist() == [is_own, False, is_own]
    prepared = await sets.prepare_labels("pets", ["cat"])
    learnt = await sets.learn("pets", "cat", prepared, make_examples(2), ())
    more = score(learnt.labels, [1.0, 1.0, 1.0])
    assert (more["cat"][1:], more["cat"][0] != found["cat"][0]) == ((0.25, "examples"), True)
    described = {each["name"]: each for each in learnt.labels.describe()["labels"]}
    assert described["cat"]["examples"]["positive"] == 2
    assert described["cat"]["fit"] == {
        **{"photos": 40, "positive": 12, "negative": 3, "text_ap": 0.25},
        **{"learnt_ap": 0.5, "threshold": 0.25},
        **{"precision": 0.5, "recall": 1.0, "precise": None},
        "this_model": True,
    }
    with pytest.raises(LabelSetChanged):
        await sets.teach("pets", prepared, {"cat": cat})
    again = await sets.teach("pets", await sets.prepare_labels("pets", ["cat"]), {"cat": cat})
    assert [*again.lessons["cat"]] == ["fit"]
    assert score(again, [1.0, 1.0, 1.0]) == found
    prompts = Definition("pets", ("cat", "yak"), ("a lion", None), (0.5, None))
    other, _ = await sets.register(prompts, replace=True)
    assert ([*other.lessons], other.unused_lessons) == (["yak"], {"cat"}), "of another text"
    assert score(other, [1.0, 1.0])["cat"][1:] == (0.5, "zero_shot")
    assert cat.is_like(replace(cat, vector=cat.vector * np.float32(1.0001)))
    assert not cat.is_like(replace(cat, vector=-cat.vector))
    await sets.stop()


def test_fit_is_read_as_it_was_written_and_a_damaged_one_is_refused() -> None:
    content = make_fit(np.ones(3, np.float32)).to_bytes()
    assert Fit.from_bytes(content).to_bytes() == content
    assert Fit.from_bytes(make_fit().to_bytes()).query is None
    size = 12 + int.from_bytes(content[4:8], "little")
    for damaged in (
        b"",
        content[:size],
        b"XX" + content[2:],
        content[:4] + b"\xff\xff\xff\xff" + content[8:],
        content[:8] + b"\xff\xff\xff\x7f" + content[12:],
        content.replace(b'"scale":2.0', b'"scale":9e9'),
        content.replace(b'"calibrated"', b'"balanced"  '),
        content[:-4] + np.float32(np.nan).tobytes(),
        content[:-1],
    ):
        with pytest.raises(InvalidLabelSet, match="damaged"):
            Fit.from_bytes(damaged)
