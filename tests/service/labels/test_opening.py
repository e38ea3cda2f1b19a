"""The catalogue of a bundle as configured, and the check of a bundle's own label sets."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.bundle.reader import Bundle
from service.bundle.writer import BundleDraft, write_bundle
from service.errors import BundleError, StartError, StoreReadOnly
from service.labels.catalogue import Catalogue
from service.labels.files import pack_label_set
from service.labels.opening import open_catalogue, read_bundle_sets
from service.pipeline.loading import open_encoders
from service.question import Question
from service.settings import Settings
from tests.support.label_store import define
from tests.support.tiny_bundle import (
    EMBEDDING_WIDTH,
    TINY_LABELS,
    open_draft,
    tiny_card,
    tiny_graphs,
)

pytestmark = pytest.mark.anyio

PETS = define("pets", "cat")


def open_with_encoders(settings: Settings, bundle: Bundle) -> Catalogue:
    return open_catalogue(settings, bundle, open_encoders(settings, bundle))


@asynccontextmanager
async def started(bundle: Bundle, **values: Any) -> AsyncIterator[Catalogue]:
    catalogue = open_with_encoders(Settings(bundle=bundle.path, **values), bundle)
    await catalogue.start()
    try:
        yield catalogue
    finally:
        await catalogue.stop()


def origins(catalogue: Catalogue) -> list[tuple[str, str]]:
    return [(labels.name, labels.origin) for labels in catalogue.list_sets()]


async def test_catalogue_has_the_sets_of_model_bundle_folder_and_store(
    open_bundle: Bundle, tmp_path: Path
) -> None:
    (tmp_path / "zoo.json").write_text('{"labels": ["yak"]}')
    async with started(open_bundle, label_sets=tmp_path, label_store="memory") as catalogue:
        await catalogue.register(PETS)
        first = [("trained", "model"), ("everyday", "bundle")]
        assert origins(catalogue) == [*first, ("zoo", "folder"), ("pets", "store")]


async def test_set_of_the_folder_replaces_one_of_the_bundle(
    open_bundle: Bundle, tmp_path: Path
) -> None:
    (tmp_path / "everyday.json").write_text('{"labels": ["yak"]}')
    async with started(open_bundle, label_sets=tmp_path, label_store="memory") as catalogue:
        assert origins(catalogue) == [("trained", "model"), ("everyday", "folder")]
        assert catalogue.find("everyday").names == ("yak",)


async def test_folder_stops_the_start_without_an_open_head(
    tiny_bundle: Bundle, tmp_path: Path
) -> None:
    (tmp_path / "zoo.json").write_text('{"labels": ["yak"]}')
    settings = Settings(bundle=tiny_bundle.path, label_sets=tmp_path)
    catalogue = open_with_encoders(settings, tiny_bundle)
    with pytest.raises(StartError, match=r"zoo: .* a bundle with an open head"):
        await catalogue.start()
    await catalogue.stop()


async def test_unusable_default_store_refuses_registrations_only(
    open_bundle: Bundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    caplog.set_level(logging.WARNING)
    async with started(open_bundle) as catalogue:
        assert "registrations are refused" in caplog.text
        with pytest.raises(StoreReadOnly):
            await catalogue.register(PETS)
        await catalogue.refresh()
        assert len(await catalogue.pin(Question(candidate_labels=("cat",)))) == 1


async def test_unusable_store_of_the_settings_stops_the_start(
    open_bundle: Bundle, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    settings = Settings(bundle=open_bundle.path, label_store=str(tmp_path / "file" / "labels.db"))
    with pytest.raises(StartError, match="no folder"):
        open_with_encoders(settings, open_bundle)


def pack(*, width: int = EMBEDDING_WIDTH, space: str | None = None) -> bytes:
    embeddings = np.ones((1, width), np.float32)
    return pack_label_set(replace(PETS, given=(0,), embeddings=embeddings, embedding_space=space))


def test_sets_of_a_bundle_are_read_by_name(tmp_path: Path) -> None:
    sets = {"zoo.npz": pack(), "cars.json": b'{"labels": ["van"]}'}
    bundle = write_bundle(tmp_path / "tiny-open", replace(open_draft(), label_sets=sets))
    found = read_bundle_sets(bundle)
    assert [(each.name, each.names) for each in found] == [("cars", ("van",)), ("zoo", ("cat",))]


TEXT, BROKEN = b'{"labels": ["cat"]}', pack()[:-30]
OPEN, WORDLESS = open_draft(), open_draft(encodes_text=False)
CLOSED = BundleDraft(card=tiny_card(), labels=TINY_LABELS, graphs=tiny_graphs())


@pytest.mark.parametrize(
    ("draft", "file", "content", "reason"),
    [
        (CLOSED, "zoo.json", TEXT, "a bundle with an open head"),
        (OPEN, "zoo.npz", pack(space="0" * 64), "embedding_space is '0000"),
        (OPEN, "zoo.npz", pack(width=EMBEDDING_WIDTH + 1), f"needs {EMBEDDING_WIDTH} values"),
        (WORDLESS, "zoo.json", TEXT, "encodes no text"),
        (OPEN, "zoo.npz", BROKEN, "must be a readable .npz"),
        (OPEN, "zoo.json", b"{", "not valid JSON"),
        (OPEN, "my zoo.json", TEXT, "1 to 100 letters"),
    ],
)
def test_bundle_with_an_unusable_set_is_refused_in_one_line(
    tmp_path: Path, draft: BundleDraft, file: str, content: bytes, reason: str
) -> None:
    bundle = write_bundle(tmp_path / draft.card.name, replace(draft, label_sets={file: content}))
    with pytest.raises(BundleError, match=f"label set {file}: .*{reason}") as caught:
        read_bundle_sets(bundle)
    assert "\n" not in str(caught.value)
