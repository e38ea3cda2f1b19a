"""A set is registered once, whole and durable, however many want to at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from service.bundle.reader import Bundle
from service.engine.heads import Embeddings
from service.errors import (
    InvalidLabelSet,
    LabelSetChanged,
    LabelSetExists,
    LabelSetNotFound,
    StoreFull,
    TooManyLabelSets,
)
from service.labels.definition import Definition
from service.labels.encoding import Encoding, open_encoding
from service.labels.registration import Registration
from service.labels.store.database import open_database
from service.labels.store.order import ABSENT, Order
from service.labels.store.store import LabelStore, Limits, Written
from service.labels.stored_sets import StoredSets
from tests.support.tiny_bundle import SPACE

pytestmark = pytest.mark.anyio

MOST_LABELS = 5


class FillingStore(LabelStore):
    """A store whose disk is full while `full` is set."""

    full = False

    def write(self, order: Order, embeddings: Embeddings) -> Written:
        if self.full:
            raise StoreFull("no space")
        return super().write(order, embeddings)


@pytest.fixture
def store() -> FillingStore:
    return FillingStore(open_database("memory"), SPACE.fingerprint, Limits(sets=50, labels=500))


@pytest.fixture
async def encoding(open_bundle: Bundle) -> AsyncIterator[Encoding]:
    encoding = open_encoding(open_bundle, threads=1, remembered=9, queue_size=9)
    assert encoding is not None
    yield encoding
    encoding.close()


@pytest.fixture
async def shown(store: FillingStore, encoding: Encoding) -> AsyncIterator[StoredSets]:
    shown = StoredSets(store, encoding, 60.0, ())
    await shown.start()
    yield shown
    await shown.stop()


@pytest.fixture
def registration(store: FillingStore, encoding: Encoding, shown: StoredSets) -> Registration:
    return Registration(encoding, store, shown, MOST_LABELS)


def order(*labels: str, replace: bool = False, if_version: int | None = None) -> Order:
    nothing = (None,) * len(labels)
    return Order(Definition("pets", labels, nothing, nothing), replace, if_version)


async def test_registered_set_is_shown_and_kept(
    registration: Registration, shown: StoredSets, store: FillingStore
) -> None:
    labels, created = await registration.write(order("cat", "dog"))
    assert created
    assert shown.by_name["pets"] is labels
    assert labels.queries is not None
    assert len(labels.queries) == 2
    stored = store.read("pets")
    assert stored is not None
    assert (str(stored.version), stored.definition.names) == (labels.version, ("cat", "dog"))


async def test_same_set_at_the_same_time_is_made_once(registration: Registration) -> None:
    results = await asyncio.gather(*(registration.write(order("cat")) for _ in range(8)))
    assert sorted(created for _, created in results) == [False] * 7 + [True]
    assert len({labels.version for labels, _ in results}) == 1


async def test_of_different_sets_of_a_name_at_the_same_time_one_is_made(
    registration: Registration, shown: StoredSets
) -> None:
    writes = (registration.write(order(f"cat {i}")) for i in range(8))
    results = await asyncio.gather(*writes, return_exceptions=True)
    made = [result for result in results if isinstance(result, tuple)]
    assert len(made) == 1
    assert all(isinstance(r, LabelSetExists) for r in results if not isinstance(r, tuple))
    assert shown.by_name["pets"] is made[0][0]


async def test_of_two_that_demand_that_there_is_none_one_is_refused(
    registration: Registration,
) -> None:
    writes = (
        registration.write(order(f"cat {i}", replace=True, if_version=ABSENT)) for i in range(4)
    )
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert sum(isinstance(result, tuple) for result in results) == 1
    assert sum(isinstance(result, LabelSetChanged) for result in results) == 3


async def test_lost_update_is_refused(registration: Registration, shown: StoredSets) -> None:
    version = int((await registration.write(order("cat")))[0].version)
    replacing = (
        registration.write(order(f"dog {i}", replace=True, if_version=version)) for i in range(4)
    )
    results = await asyncio.gather(*replacing, return_exceptions=True)
    assert sum(isinstance(result, tuple) for result in results) == 1
    assert sum(isinstance(result, LabelSetChanged) for result in results) == 3
    assert int(shown.by_name["pets"].version) == version + 1


async def test_full_store_shows_nothing_of_what_it_did_not_keep(
    registration: Registration, shown: StoredSets, store: FillingStore
) -> None:
    before, _ = await registration.write(order("cat"))
    store.full = True
    with pytest.raises(StoreFull):
        await registration.write(order("dog", replace=True))
    assert shown.by_name["pets"] is before
    store.full = False
    await registration.write(order("dog", replace=True))
    assert shown.by_name["pets"].names == ("dog",)


async def test_set_for_which_the_store_has_no_room_is_refused_before_it_is_encoded(
    encoding: Encoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LabelStore(open_database("memory"), SPACE.fingerprint, Limits(sets=9, labels=3))
    shown = StoredSets(store, encoding, 60.0, ())
    registration = Registration(encoding, store, shown, MOST_LABELS)
    encoded: list[Definition] = []
    embed = encoding.embed

    async def note_and_embed(definition: Definition) -> Embeddings:
        encoded.append(definition)
        return await embed(definition)

    monkeypatch.setattr(encoding, "embed", note_and_embed)
    with pytest.raises(TooManyLabelSets):
        await registration.write(order(*"abcd"))
    assert not encoded
    assert (await registration.write(order(*"abc")))[1]
    assert len(encoded) == 1
    await shown.stop()


async def test_set_with_too_many_labels_is_refused(registration: Registration) -> None:
    with pytest.raises(InvalidLabelSet, match=f"at most {MOST_LABELS}"):
        await registration.write(order(*"abcdef"))
    assert (await registration.write(order(*"abcde")))[1]


async def test_thresholds_are_set_for_the_labels_that_are_named(
    registration: Registration, shown: StoredSets
) -> None:
    before, _ = await registration.write(order("cat", "dog"))
    first = await registration.set_thresholds("pets", {"dog": 0.9, "other": 0.1}, None)
    second = await registration.set_thresholds("pets", {"cat": 0.2}, int(first.version))
    assert first.calibrated.tolist() == [False, True]
    assert second.thresholds.tolist() == [0.2, 0.9]
    assert int(before.version) < int(first.version) < int(second.version)
    assert shown.by_name["pets"] is second
    with pytest.raises(LabelSetNotFound):
        await registration.set_thresholds("none", {"cat": 0.2}, None)


async def test_thresholds_are_for_the_version_that_is_named(
    registration: Registration, shown: StoredSets
) -> None:
    scored, _ = await registration.write(order("cat"))
    other, _ = await registration.write(order("cat", "dog", replace=True))
    with pytest.raises(LabelSetChanged):
        await registration.set_thresholds("pets", {"cat": 0.9}, int(scored.version))
    assert shown.by_name["pets"] is other
    changed = await registration.set_thresholds("pets", {"cat": 0.9}, int(other.version))
    assert changed.calibrated.tolist() == [True, False]
