"""The catalogue: where its sets come from, which a request pins, which may be changed."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service import errors
from service.bundle.card import Calibration
from service.bundle.reader import Bundle
from service.labels.builder import LabelSetBuilder, PhotoSpace
from service.labels.catalogue import Catalogue, FixedSet, _make_version, open_catalogue
from service.labels.definition import Definition
from service.labels.label_set import LabelSet, Origin, make_trained_set
from service.labels.sources.examples import Examples
from service.labels.store.store import LabelStore
from service.labels.words import Words
from service.pipeline.loading import open_encoders
from service.question import Question
from service.settings import Settings
from tests.support.label_store import FlakyStore, define, make_examples, make_photos, put
from tests.support.tiny_bundle import PLAIN_HEAD, TINY_LABELS, WIDTH, WORDS

pytestmark = pytest.mark.anyio

TRAINED = make_trained_set(TINY_LABELS, PLAIN_HEAD)
PETS = define("pets", "cat")


def fix(name: str, *labels: str, origin: Origin = "folder") -> FixedSet:
    return FixedSet(define(name, *labels), "1.0", origin)


NO_PHOTOS = PhotoSpace()
EVERYDAY, ZOO = fix("everyday", "chair", origin="bundle"), fix("zoo", "yak")
OWN = fix("everyday", "yak")


@asynccontextmanager
async def run(catalogue: Catalogue) -> AsyncIterator[Catalogue]:
    try:
        await catalogue.start()
        yield catalogue
    finally:
        await catalogue.stop()


def make(
    bundle: Bundle,
    *fixed: FixedSet,
    default: tuple[str, ...] = (),
    store: LabelStore | None = None,
    trained: LabelSet | None = TRAINED,
    photos: PhotoSpace = NO_PHOTOS,
) -> Catalogue:
    return Catalogue(
        trained,
        fixed,
        LabelSetBuilder(open_encoders(Settings(bundle=bundle.path), bundle), photos),
        store or FlakyStore("memory"),
        Settings(
            default_label_set=",".join(default), max_candidate_labels=3, label_poll_seconds=60.0
        ),
    )


def open_configured(bundle: Bundle, **values: Any) -> Catalogue:
    settings = Settings(bundle=bundle.path, **values)
    return open_catalogue(settings, bundle, open_encoders(settings, bundle))


@pytest.fixture
async def catalogue(open_bundle: Bundle) -> AsyncIterator[Catalogue]:
    async with run(make(open_bundle, EVERYDAY)) as catalogue:
        yield catalogue


async def register(catalogue: Catalogue, definition: Definition, **options: Any) -> None:
    await catalogue.writable(definition.name).register(definition, **options)


async def pin_names(catalogue: Catalogue, question: Question) -> list[str]:
    return [labels.name for labels in await catalogue.pin(question)]


def list_origins(catalogue: Catalogue) -> dict[str, str]:
    return {labels.name: labels.origin for labels in catalogue.list_sets()}


async def test_question_pins_the_sets_that_it_names(catalogue: Catalogue) -> None:
    await register(catalogue, PETS)
    for values, names in (
        ({}, ["trained", "everyday"]),
        ({"label_set": ("pets", "everyday", "pets")}, ["pets", "everyday"]),
        ({"candidate_labels": ("yak",)}, ["candidate_labels"]),
        ({"candidate_labels": ("yak",), "label_set": ("pets",)}, ["candidate_labels", "pets"]),
    ):
        assert await pin_names(catalogue, Question(**values)) == names


@pytest.mark.parametrize(
    ("trained", "sets", "configured", "expected"),
    [
        (TRAINED, (), "", "trained"),
        (TRAINED, (EVERYDAY, ZOO), "", "trained everyday"),
        (None, (EVERYDAY, ZOO), "", "everyday"),
        (None, (ZOO,), "", "zoo"),
        (TRAINED, (EVERYDAY, ZOO), "zoo trained", "zoo trained"),
        # Users' sets come first, also if one replaces the bundle's.
        (TRAINED, (EVERYDAY, ZOO), "everyday zoo trained mine", "zoo mine everyday trained"),
        (TRAINED, (EVERYDAY, OWN), "trained everyday", "everyday trained"),
    ],
)
async def test_default_is_the_trained_labels_and_the_sets_of_the_bundle_unless_configured(
    open_bundle: Bundle,
    trained: LabelSet | None,
    sets: tuple[FixedSet, ...],
    configured: str,
    expected: str,
) -> None:
    default = tuple(configured.split())
    async with run(make(open_bundle, *sets, default=default, trained=trained)) as catalogue:
        await register(catalogue, define("mine", "chair"))
        assert await pin_names(catalogue, Question()) == expected.split()
        assert catalogue.default_columns == (None if configured else expected.split()[:1])
        if configured:  # a client's order counts
            assert await pin_names(catalogue, Question(label_set=default)) == list(default)
        if sets:  # the last of a name
            last = sets[-1].definition
            assert catalogue.find(last.name).names == last.names


async def test_candidates_with_other_names_have_another_version(catalogue: Catalogue) -> None:
    versions = []
    for names in (("yak",), ("yak",), ("newt",), ("a", "b", "c")):
        (found,) = await catalogue.pin(Question(candidate_labels=names))
        assert found.names == names
        versions.append(found.version)
    assert versions[0] == versions[1] != versions[2]
    for names in (("a", "a"), ("a", "b", "c", "d")):
        with pytest.raises(errors.InvalidLabelSet):
            await catalogue.pin(Question(candidate_labels=names))


async def test_added_labels_take_names_and_words_of_the_bundle(worded_bundle: Bundle) -> None:
    async with run(open_configured(worded_bundle)) as catalogue:
        own = {"pug": Words(translations={"de": "Mops"}), "yak": Words(("grunting ox",))}
        given = define("mine", "Katze", "pug", "yak", "Stuhl", words=own)
        adopted, changed = catalogue.adopt_words(given, "de")
        assert adopted.names == ("cat", "pug", "yak", "chair")
        assert changed == {"Katze": "cat", "Stuhl": "chair"}
        assert adopted.words == own | {name: WORDS[name] for name in ("cat", "chair")}
        plain, changed = catalogue.adopt_words(define("mine", "Katze", "Puss"), None)
        assert (plain.names, changed) == (("Katze", "cat"), {"Puss": "cat"})
        assert catalogue.adopt_words(define("mine", "cat", "puss"), None)[0].names == ("cat",)
        assert catalogue.adopt_words(define("mine", "puss"), None, {"puss"})[0].names == ("puss",)
        thresholds = Definition("mine", ("cat", "puss"), (None, None), (0.5, 0.3))
        with pytest.raises(errors.InvalidLabelSet, match="'puss' means 'cat', which is there"):
            catalogue.adopt_words(thresholds, None)
        with pytest.raises(errors.UnknownLanguage):
            catalogue.adopt_words(given, "it")


async def test_stopped_catalogue_has_closed_store_and_encoders(open_bundle: Bundle) -> None:
    async with run(make(open_bundle, EVERYDAY)) as catalogue:
        pass
    with pytest.raises(errors.Draining):
        await catalogue.refresh()
    with pytest.raises(errors.Draining):
        await catalogue.pin(Question(candidate_labels=("yak",)))
    assert await pin_names(catalogue, Question()) == ["trained", "everyday"]


async def test_default_set_may_be_registered_later_and_is_unknown_until_then(
    open_bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with run(make(open_bundle, EVERYDAY, default=("pets",))) as catalogue:
        assert "the default label set pets is missing" in caplog.text
        for names, is_default in (((), True), (("pets",), False)):
            with pytest.raises(errors.UnknownLabelSet) as caught:
                await catalogue.pin(Question(label_set=names))
            assert str(caught.value).startswith("'pets'")
            assert ("the default of requests" in str(caught.value.detail)) == is_default
        with pytest.raises(errors.UnknownLabelSet) as caught:
            await catalogue.pin(Question(label_set=("none", "trained", "neither")))
        assert str(caught.value).startswith("'none', 'neither'")
        await register(catalogue, PETS)
        assert await pin_names(catalogue, Question()) == ["pets"]


async def test_missing_set_is_not_unknown_while_the_store_is_unavailable(
    open_bundle: Bundle,
) -> None:
    store = FlakyStore("memory")
    put(store, "pets", "cat")
    put(store, "everyday", "cat")  # a fixed set hides it
    store.away = True
    async with run(make(open_bundle, EVERYDAY, default=("pets",), store=store)) as catalogue:
        assert (catalogue.store_revision, catalogue.store_answers) == (0, False)
        for names in ((), ("trained", "pets"), ("none",)):
            with pytest.raises(errors.StoreUnavailable):
                await catalogue.pin(Question(label_set=names))
        with pytest.raises(errors.StoreUnavailable):
            catalogue.find("pets")
        assert catalogue.get("pets") is None
        await catalogue.pin(Question(label_set=("trained", "everyday")))
        store.away = False
        await catalogue.refresh()
        assert await pin_names(catalogue, Question()) == ["pets"]
        assert list(list_origins(catalogue)) == ["trained", "everyday", "pets"]
        assert catalogue.find("everyday").names == ("chair",)


async def test_model_without_open_head_serves_its_trained_labels(tiny_bundle: Bundle) -> None:
    async with run(make(tiny_bundle)) as catalogue:
        assert catalogue.list_sets() == (TRAINED,)
        assert (catalogue.store_revision, catalogue.store_answers) == (0, True)
        with pytest.raises(errors.NoOpenHead):
            await catalogue.pin(Question(candidate_labels=("yak",)))
        with pytest.raises(errors.NoOpenHead):
            catalogue.writable("pets")
        with pytest.raises(errors.VersionNotReached):
            await catalogue.pin(Question(min_version=1))
        assert await pin_names(catalogue, Question(min_version=0)) == ["trained"]
        await catalogue.refresh()


WIDE = np.ones((1, 99), np.float32)


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        (define("trained", "cat"), "names candidate_labels and trained are reserved"),
        (define("pets", "cat", embedding_space="0" * 64), "pets: The embeddings come from another"),
        (define("pets", "cat", given=(0,), embeddings=WIDE), "pets: .* An embedding needs"),
    ],
)
async def test_fixed_set_that_does_not_fit_stops_the_start(
    open_bundle: Bundle, definition: Definition, reason: str
) -> None:
    with pytest.raises(errors.StartError, match=reason) as caught:
        async with run(make(open_bundle, FixedSet(definition, "1.0", "folder"))):
            pass
    assert "\n" not in str(caught.value)


async def test_catalogue_has_the_sets_of_model_bundle_folder_and_store(
    open_bundle: Bundle, tmp_path: Path
) -> None:
    (tmp_path / "zoo.json").write_text('{"labels": ["yak"]}')
    places = {"label_sets": tmp_path, "label_store": "memory"}
    opened = open_configured(open_bundle, **places, default_label_set="everyday, zoo")
    async with run(opened) as catalogue:
        await register(catalogue, PETS)
        assert await pin_names(catalogue, Question()) == ["zoo", "everyday"]
        fixed = {"trained": "model", "everyday": "bundle", "zoo": "folder"}
        assert list_origins(catalogue) == {**fixed, "pets": "store"}


async def test_unusable_store_refuses_registrations_or_stops_the_start_if_it_was_asked_for(
    open_bundle: Bundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    caplog.set_level(logging.WARNING)
    async with run(open_configured(open_bundle)) as catalogue:
        assert "registrations are refused" in caplog.text
        with pytest.raises(errors.StoreReadOnly):
            catalogue.writable("pets")
        await catalogue.refresh()
        assert len(await catalogue.pin(Question(candidate_labels=("cat",)))) == 1
    with pytest.raises(errors.StartError, match="no folder"):
        open_configured(open_bundle, label_store=str(tmp_path / "file" / "labels.db"))


PHOTOS = make_photos()


async def test_uncalibrated_softmax_learns_no_labels_until_the_set_is_calibrated(
    open_bundle: Bundle,
) -> None:
    catalogue = make(open_bundle, photos=PHOTOS)
    head = catalogue.encoders.head.model_copy(update={"activation": "softmax"})
    catalogue.encoders.head = head
    async with run(catalogue):
        with pytest.raises(errors.ScoresCompete, match="--open-photos"):
            catalogue.for_learning("pets")
        await register(catalogue, PETS)
        with pytest.raises(errors.ScoresCompete):
            catalogue.for_learning("pets")
        calibration = Calibration(scale=1.0, shift=0.0)
        await catalogue.writable("pets").calibrate("pets", {}, calibration)
        catalogue.for_learning("pets")


@pytest.mark.parametrize("encoder", [PHOTOS.encoder, "other"])
async def test_fixed_set_has_its_examples_if_they_are_of_this_encoder(
    open_bundle: Bundle, tiny_bundle: Bundle, encoder: str
) -> None:
    lessons = {"cat": {"examples": Examples.empty(WIDTH).add(make_examples(2))}}
    learnt = FixedSet(define("pets", "cat", lessons=lessons, encoder=encoder), "1.0", "folder")
    for bundle, source in ((open_bundle, "zero_shot"), (tiny_bundle, "examples")):
        async with run(make(bundle, learnt, photos=PHOTOS)) as catalogue:
            pets = catalogue.find("pets")
            is_ours = encoder == PHOTOS.encoder
            assert (pets.source.name, [*pets.lessons]) == (source, ["cat"] if is_ours else [])
            assert pets.unused_lessons == (set() if is_ours else {"cat"})


def test_version_of_a_fixed_set_changes_with_its_examples() -> None:
    examples = [Examples.empty(WIDTH).add(make_examples(2, seed)) for seed in range(2)]
    versions = [
        _make_version(define("pets", "cat", lessons={"cat": {"examples": each}}))
        for each in examples
    ]
    bare = define("pets", "cat")
    assert (_make_version(bare), len({*versions, _make_version(bare)})) == (bare.digest[:12], 3)
