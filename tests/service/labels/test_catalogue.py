"""The catalogue: the sets that a request pins, the sets that may be changed, the fixed ones."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from service.bundle.reader import Bundle
from service.errors import (
    Draining,
    InvalidLabelSet,
    LabelSetNotFound,
    LabelSetReadOnly,
    NoOpenHead,
    StartError,
    StoreUnavailable,
    UnknownLabelSet,
    VersionNotReached,
)
from service.labels.catalogue import Catalogue, FixedSet
from service.labels.definition import Definition
from service.labels.encoding import open_label_encoders
from service.labels.label_set import LabelSet, make_trained_set
from service.labels.store.store import LabelStore
from service.question import Question
from tests.support.label_store import FlakyStore, define, put
from tests.support.tiny_bundle import PLAIN_HEAD, TINY_LABELS

pytestmark = pytest.mark.anyio

TRAINED = make_trained_set(TINY_LABELS, PLAIN_HEAD)


EVERYDAY = FixedSet(define("everyday", "chair"), "1.0", "bundle")


def make_catalogue(
    bundle: Bundle,
    *fixed: FixedSet,
    default: tuple[str, ...] = (),
    store: LabelStore | None = None,
    trained: LabelSet | None = TRAINED,
) -> Catalogue:
    encoding = open_label_encoders(bundle, threads=1, cache_size=9, queue_size=9)
    return Catalogue(
        trained,
        fixed,
        encoding,
        store or FlakyStore("memory"),
        default_sets=default,
        max_candidates=3,
        poll_seconds=60.0,
    )


@asynccontextmanager
async def started(bundle: Bundle, *fixed: FixedSet, **options: Any) -> AsyncIterator[Catalogue]:
    catalogue = make_catalogue(bundle, *fixed, **options)
    await catalogue.start()
    yield catalogue
    await catalogue.stop()


@pytest.fixture
async def catalogue(open_bundle: Bundle) -> AsyncIterator[Catalogue]:
    async with started(open_bundle, EVERYDAY) as catalogue:
        yield catalogue


@pytest.mark.parametrize(
    ("default", "pinned"),
    [
        (("trained", "everyday", "mine", "zoo"), ["mine", "zoo", "trained", "everyday"]),
        (("everyday", "zoo", "trained", "mine"), ["zoo", "mine", "everyday", "trained"]),
        (("everyday", "trained"), ["everyday", "trained"]),
    ],
)
async def test_sets_of_users_come_first_unless_the_client_names_sets(
    open_bundle: Bundle, default: tuple[str, ...], pinned: list[str]
) -> None:
    zoo = FixedSet(define("zoo", "yak"), "1", "folder")
    async with started(open_bundle, EVERYDAY, zoo, default=default) as catalogue:
        await catalogue.register(define("mine", "chair"))
        assert await pin_names(catalogue, Question()) == pinned
        assert await pin_names(catalogue, Question(label_set=default)) == list(default)


async def test_set_of_the_folder_that_replaces_one_of_the_bundle_is_the_users(
    open_bundle: Bundle,
) -> None:
    own = FixedSet(define("everyday", "yak"), "1", "folder")
    async with started(open_bundle, EVERYDAY, own, default=("trained", "everyday")) as catalogue:
        assert await pin_names(catalogue, Question()) == ["everyday", "trained"]


async def pin_names(catalogue: Catalogue, question: Question) -> list[str]:
    return [labels.name for labels in await catalogue.pin(question)]


async def test_question_pins_the_sets_that_it_names(catalogue: Catalogue) -> None:
    await catalogue.register(define("pets", "cat"))
    assert await pin_names(catalogue, Question()) == ["trained", "everyday"]
    twice = Question(label_set=("pets", "everyday", "pets"))
    assert await pin_names(catalogue, twice) == ["pets", "everyday"]
    candidates = Question(candidate_labels=("yak",))
    assert await pin_names(catalogue, candidates) == ["candidate_labels"]
    both = Question(candidate_labels=("yak",), label_set=("pets",))
    assert await pin_names(catalogue, both) == ["candidate_labels", "pets"]


ZOO = FixedSet(define("zoo", "yak"), "1.0", "folder")


@pytest.mark.parametrize(
    ("trained", "fixed", "configured", "expected"),
    [
        (TRAINED, (), (), (["trained"], ["trained"])),
        (TRAINED, (EVERYDAY, ZOO), (), (["trained", "everyday"], ["trained"])),
        (None, (EVERYDAY, ZOO), (), (["everyday"], ["everyday"])),
        (None, (ZOO,), (), (["zoo"], ["zoo"])),
        (TRAINED, (EVERYDAY, ZOO), ("zoo", "trained"), (["zoo", "trained"], None)),
    ],
)
async def test_default_is_the_trained_labels_and_the_sets_of_the_bundle_unless_configured(
    open_bundle: Bundle,
    trained: LabelSet | None,
    fixed: tuple[FixedSet, ...],
    configured: tuple[str, ...],
    expected: tuple[list[str], list[str] | None],
) -> None:
    async with started(open_bundle, *fixed, default=configured, trained=trained) as catalogue:
        names, columns = expected
        assert await pin_names(catalogue, Question()) == names
        assert catalogue.default_columns == columns


async def test_error_names_every_unknown_set(catalogue: Catalogue) -> None:
    with pytest.raises(UnknownLabelSet) as caught:
        await catalogue.pin(Question(label_set=("none", "trained", "neither")))
    assert caught.value.names == ("none", "neither")


async def test_pinned_set_stays_after_it_is_replaced_and_deleted(catalogue: Catalogue) -> None:
    question = Question(label_set=("pets",))
    await catalogue.register(define("pets", "cat"))
    (first,) = await catalogue.pin(question)
    await catalogue.register(define("pets", "dog"), replace=True)
    (second,) = await catalogue.pin(question)
    await catalogue.delete("pets")
    with pytest.raises(UnknownLabelSet):
        await catalogue.pin(question)
    with pytest.raises(LabelSetNotFound):
        catalogue.find("pets")
    assert (first.names, second.names) == (("cat",), ("dog",))
    assert first.version < second.version


async def test_candidates_with_other_names_have_another_version(catalogue: Catalogue) -> None:
    (one,) = await catalogue.pin(Question(candidate_labels=("yak",)))
    (same,) = await catalogue.pin(Question(candidate_labels=("yak",)))
    (other,) = await catalogue.pin(Question(candidate_labels=("newt",)))
    assert one.version == same.version != other.version
    (most,) = await catalogue.pin(Question(candidate_labels=("a", "b", "c")))
    assert most.names == ("a", "b", "c")
    for names in (("a", "a"), ("a", "b", "c", "d")):
        with pytest.raises(InvalidLabelSet):
            await catalogue.pin(Question(candidate_labels=names))


async def test_change_replaces_the_set_and_raises_the_revision(catalogue: Catalogue) -> None:
    await catalogue.register(define("pets", "cat", "dog"))
    changed = await catalogue.calibrate("pets", {"dog": 0.25}, None)
    assert catalogue.find("pets") is catalogue.list_sets()[-1] is changed
    assert catalogue.store_revision == int(changed.version)
    assert changed.thresholds[changed.calibrated].tolist() == [0.25]
    await catalogue.delete("pets", int(changed.version))
    assert [labels.name for labels in catalogue.list_sets()] == ["trained", "everyday"]


async def test_stored_set_is_hidden_by_a_fixed_one_of_its_name(open_bundle: Bundle) -> None:
    store = FlakyStore("memory")
    put(store, "everyday", "cat")
    catalogue = make_catalogue(open_bundle, EVERYDAY, store=store)
    assert (catalogue.store_revision, catalogue.store_answers) == (0, True)
    await catalogue.start()
    assert [labels.name for labels in catalogue.list_sets()] == ["trained", "everyday"]
    assert catalogue.find("everyday").names == ("chair",)
    await catalogue.stop()


async def test_stopped_catalogue_has_closed_store_and_encoders(open_bundle: Bundle) -> None:
    catalogue = make_catalogue(open_bundle, EVERYDAY)
    await catalogue.start()
    await catalogue.stop()
    with pytest.raises(Draining):
        await catalogue.refresh()
    with pytest.raises(Draining):
        await catalogue.pin(Question(candidate_labels=("yak",)))
    assert await pin_names(catalogue, Question()) == ["trained", "everyday"]


@pytest.mark.parametrize("name", ["trained", "everyday", "candidate_labels"])
async def test_read_only_set_cannot_be_changed(catalogue: Catalogue, name: str) -> None:
    before = catalogue.list_sets()
    for change in (
        catalogue.register(define(name, "cat")),
        catalogue.register(define(name, "cat"), replace=True),
        catalogue.calibrate(name, {"cat": 0.5}, None),
        catalogue.delete(name),
    ):
        with pytest.raises(LabelSetReadOnly):
            await change
    assert catalogue.list_sets() == before


async def test_default_set_may_be_registered_later_and_is_unknown_until_then(
    open_bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with started(open_bundle, EVERYDAY, default=("pets",)) as catalogue:
        assert "the default label set pets is missing" in caplog.text
        with pytest.raises(UnknownLabelSet) as caught:
            await catalogue.pin(Question())
        assert caught.value.names == ("pets",)
        assert "the default of requests" in str(caught.value.detail)
        with pytest.raises(UnknownLabelSet) as caught:
            await catalogue.pin(Question(label_set=("pets",)))
        assert "the default" not in str(caught.value.detail)
        await catalogue.register(define("pets", "cat"))
        assert await pin_names(catalogue, Question()) == ["pets"]


async def test_missing_set_is_not_unknown_while_the_store_is_unavailable(
    open_bundle: Bundle,
) -> None:
    store = FlakyStore("memory")
    put(store, "pets", "cat")
    store.away = True
    async with started(open_bundle, EVERYDAY, default=("pets",), store=store) as catalogue:
        for names in ((), ("trained", "pets"), ("none",)):
            with pytest.raises(StoreUnavailable):
                await catalogue.pin(Question(label_set=names))
        with pytest.raises(StoreUnavailable):
            catalogue.find("pets")
        assert catalogue.get("pets") is None
        await catalogue.pin(Question(label_set=("trained", "everyday")))
        store.away = False
        await catalogue.refresh()
        assert await pin_names(catalogue, Question()) == ["pets"]


async def test_model_without_open_head_serves_its_trained_labels(tiny_bundle: Bundle) -> None:
    async with started(tiny_bundle) as catalogue:
        assert await pin_names(catalogue, Question()) == ["trained"]
        assert catalogue.list_sets() == (TRAINED,)
        assert (catalogue.store_revision, catalogue.store_answers) == (0, True)
        with pytest.raises(NoOpenHead):
            await catalogue.pin(Question(candidate_labels=("yak",)))
        with pytest.raises(NoOpenHead):
            await catalogue.register(define("pets", "cat"))
        with pytest.raises(VersionNotReached):
            await catalogue.pin(Question(min_version=1))
        assert await pin_names(catalogue, Question(min_version=0)) == ["trained"]
        await catalogue.refresh()


def fixed_set(name: str = "pets", space: str | None = None, width: int | None = None) -> FixedSet:
    rows = 0 if width is None else 1
    embeddings = np.ones((rows, width or 0), np.float32)
    given = tuple(range(rows))
    definition = Definition(name, ("cat",), (None,), (0.25,), given, embeddings, space)
    return FixedSet(definition, "1.0", "folder")


async def test_fixed_set_is_encoded_as_it_was_defined(open_bundle: Bundle) -> None:
    async with started(open_bundle, fixed_set()) as catalogue:
        labels = catalogue.find("pets")
        assert (labels.name, labels.version, labels.origin) == ("pets", "1.0", "folder")
        assert labels.thresholds.tolist() == [0.25]
        assert labels.queries is not None
        assert catalogue.encoding is not None
        assert labels.queries.shape == catalogue.encoding.make_blank(1).queries.shape


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (fixed_set("trained"), "names candidate_labels and trained are reserved"),
        (fixed_set(space="0" * 64), "pets: The embeddings come from another"),
        (fixed_set(width=99), "pets: .* An embedding needs"),
    ],
)
async def test_fixed_set_that_does_not_fit_stops_the_start(
    open_bundle: Bundle, entry: FixedSet, reason: str
) -> None:
    catalogue = make_catalogue(open_bundle, entry)
    with pytest.raises(StartError, match=reason) as caught:
        await catalogue.start()
    assert "\n" not in str(caught.value)
    await catalogue.stop()
