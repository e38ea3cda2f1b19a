"""Fixtures for every test: tiny bundles, PostgreSQL, asyncio."""

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from service.bundle.reader import Bundle
from tests.support.postgres import Postgres, find_missing
from tests.support.tiny_bundle import (
    write_categorised_bundle,
    write_learning_bundle,
    write_mapped_bundle,
    write_open_bundle,
    write_tiny_bundle,
    write_worded_bundle,
)

# Each process of a parallel run has a core: torch's threads would only wait for each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# No time limit per example: a busy machine is not a failure.
settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")


def pytest_unconfigure() -> None:
    """Unfreezes objects that in-process commands froze.

    Otherwise extensions of torch report hundreds of leaks after the last line.
    """
    gc.unfreeze()


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A tiny bundle on disk; read only."""
    return write_tiny_bundle(tmp_path_factory.mktemp("bundles"))


@pytest.fixture(scope="session")
def open_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A tiny bundle with an open head, a text encoder and the label set `everyday`."""
    return write_open_bundle(tmp_path_factory.mktemp("open"))


@pytest.fixture(scope="session")
def learning_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The same with a background, so that labels learn from photos."""
    return write_learning_bundle(tmp_path_factory.mktemp("learning"))


@pytest.fixture(scope="session")
def categorised_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A tiny bundle whose labels have categories, one of which is answered by its best label."""
    return write_categorised_bundle(tmp_path_factory.mktemp("categories"))


@pytest.fixture(scope="session")
def worded_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The open bundle with words of its labels."""
    return write_worded_bundle(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="session")
def mapped_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The open bundle with maps of both heads' labels."""
    return write_mapped_bundle(tmp_path_factory.mktemp("mapped"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server; a test that stops it starts it again and deletes its tables."""
    missing = find_missing()
    if missing is not None:
        pytest.skip(f"PostgreSQL: {missing}")
    # Not below pytest's folders: those are closed to other users, and socket paths are short.
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as folder:
        server = Postgres(Path(folder))
        yield server
        server.stop()


@pytest.fixture
def pooled(postgres: Postgres) -> Iterator[str]:
    """The URL of an empty schema behind PgBouncer, which pools transactions."""
    with postgres.pooled() as url:
        yield url


@pytest.fixture(autouse=True, scope="session")
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Redirects the default label store, so that tests never touch the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def anyio_backend() -> str:
    """Async tests (marked `anyio`) run on asyncio, as the service does."""
    return "asyncio"
