"""The label store, changed without a server: what `ml-decoder labels` does.

In: settings and what a person says of a label set. Out: the sets as they are then; a service that
runs on the same store sees them within its `label_poll_seconds`. Next: `labels/catalogue.py`, the
same that serves HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from service.bundle.card import format_first_error
from service.bundle.reader import load_bundle
from service.errors import StartError
from service.http.telemetry.logs import configure_logs
from service.labels.catalogue import Catalogue
from service.labels.definition import Definition, LabelSetRecord, define_label_set
from service.labels.files import read_label_set_file
from service.labels.label_set import LabelSet
from service.labels.opening import open_catalogue
from service.pipeline.loading import open_encoders
from service.settings import Settings

ResultT = TypeVar("ResultT")


def define_set(name: str, names: list[str] | None, file: Path | None) -> Definition:
    """Returns the definition of a set from the names of its labels, or from a file.

    Raises:
        StartError: both or none are given, or they define no set.
    """
    if bool(names) == (file is not None):
        raise StartError("labels add takes either --label or --file")
    if file is not None:
        return read_label_set_file(file, name)
    try:
        return define_label_set(LabelSetRecord.model_validate({"name": name, "labels": names}))
    except ValidationError as error:
        raise StartError(format_first_error(error)) from error


def add_set(settings: Settings, definition: Definition, *, replace: bool) -> LabelSet:
    """Registers a set and returns it.

    Args:
        settings: bundle and store.
        definition: the set.
        replace: it may take the place of a set of its name.

    Raises:
        ServiceError: it cannot be registered, or the store cannot be used.
        BundleError: the bundle is absent, damaged or inconsistent.
    """

    async def write(catalogue: Catalogue) -> LabelSet:
        register = catalogue.replace if replace else catalogue.register
        return (await register(definition))[0]

    return _run(settings, write)


def load_sets(settings: Settings) -> tuple[LabelSet, ...]:
    """Returns the sets of the model, the bundle, the folder and the store.

    Raises:
        ServiceError: the folder or the store cannot be used.
        BundleError: the bundle is absent, damaged or inconsistent.
    """

    async def load(catalogue: Catalogue) -> tuple[LabelSet, ...]:
        await catalogue.start()
        await catalogue.refresh()  # unlike a service, a list without the store's sets is no use
        return catalogue.list_sets()

    return _run(settings, load)


def remove_set(settings: Settings, name: str) -> None:
    """Deletes a set from the store.

    Raises:
        ServiceError: there is none of that name, or the store cannot be used.
        BundleError: the bundle is absent, damaged or inconsistent.
    """
    _run(settings, lambda catalogue: catalogue.delete(name))


def _run(settings: Settings, work: Callable[[Catalogue], Awaitable[ResultT]]) -> ResultT:
    configure_logs("error")
    bundle = load_bundle(settings.bundle)
    catalogue = open_catalogue(settings, bundle, open_encoders(settings, bundle))

    async def run() -> ResultT:
        try:
            return await work(catalogue)
        finally:
            await catalogue.stop()

    return asyncio.run(run())
