"""The settings say which label sets there are, and a place nobody asked for stops nothing."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from service.bundle.reader import Bundle
from service.errors import StartError, StoreUnavailable
from service.labels.catalogue import Catalogue
from service.labels.definition import Definition
from service.labels.opening import open_catalogue
from service.labels.question import Question
from service.pipeline.loading import open_encoders
from service.settings import Settings

pytestmark = pytest.mark.anyio

PETS = Definition("pets", ("cat",), (None,), (None,))


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


async def test_sets_of_model_bundle_folder_and_store_are_there(
    open_bundle: Bundle, tmp_path: Path
) -> None:
    (tmp_path / "zoo.json").write_text('{"labels": ["yak"]}')
    async with started(open_bundle, label_sets=tmp_path, label_store="memory") as catalogue:
        await catalogue.register(PETS)
        assert origins(catalogue) == [
            ("trained", "model"),
            ("everyday", "bundle"),
            ("zoo", "folder"),
            ("pets", "store"),
        ]


async def test_folder_takes_the_place_of_a_set_of_the_bundle(
    open_bundle: Bundle, tmp_path: Path
) -> None:
    (tmp_path / "everyday.json").write_text('{"labels": ["yak"]}')
    async with started(open_bundle, label_sets=tmp_path, label_store="memory") as catalogue:
        assert origins(catalogue) == [("trained", "model"), ("everyday", "folder")]
        assert catalogue.find("everyday").names == ("yak",)


async def test_folder_of_a_model_without_open_head_stops_the_start(
    tiny_bundle: Bundle, tmp_path: Path
) -> None:
    (tmp_path / "zoo.json").write_text('{"labels": ["yak"]}')
    settings = Settings(bundle=tiny_bundle.path, label_sets=tmp_path)
    catalogue = open_with_encoders(settings, tiny_bundle)
    with pytest.raises(StartError, match="zoo"):
        await catalogue.start()
    await catalogue.stop()


async def test_default_place_that_cannot_be_used_only_refuses_registrations(
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
        with pytest.raises(StoreUnavailable):
            await catalogue.register(PETS)
        await catalogue.refresh()
        assert len(await catalogue.pin(Question(candidate_labels=("cat",)))) == 1


async def test_place_that_was_asked_for_has_to_be_usable(
    open_bundle: Bundle, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    settings = Settings(bundle=open_bundle.path, label_store=str(tmp_path / "file" / "labels.db"))
    with pytest.raises(StartError, match="no folder"):
        open_with_encoders(settings, open_bundle)
