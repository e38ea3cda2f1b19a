"""Opens the catalogue of a bundle as the settings say.

In: a `Bundle`, its encoders and the `Settings`. Out: a `Catalogue`, which loads its sets when it
starts.
"""

from __future__ import annotations

import logging
from pathlib import Path

from service.bundle.reader import Bundle
from service.errors import BundleError, InvalidLabelSet, LabelSetError, NoOpenHead, StartError
from service.labels.catalogue import Catalogue, CatalogueRules
from service.labels.definition import Definition, check_fit
from service.labels.encoding import Encoding
from service.labels.files import parse_label_set, read_label_set_folder
from service.labels.fixed_sets import FixedSet
from service.labels.label_set import LabelSet, make_trained_set
from service.labels.store.database import open_database
from service.labels.store.store import LabelStore, Limits
from service.settings import Settings

_log = logging.getLogger(__name__)


def open_catalogue(settings: Settings, bundle: Bundle, encoding: Encoding | None) -> Catalogue:
    """Reads the label sets of bundle and folder, and prepares the store.

    Args:
        settings: which label sets there are, and where the store is.
        bundle: the model.
        encoding: its encoders, which the catalogue closes; None where it has no open head.

    Raises:
        BundleError: a label set of the bundle cannot be used.
        StartError: the folder or the store cannot be used as configured.
    """
    fixed = [
        FixedSet(definition, bundle.card.version, "bundle")
        for definition in read_bundle_sets(bundle)
    ]
    if settings.label_sets is not None:
        fixed += [
            FixedSet(definition, definition.digest[:12], "folder")
            for definition in read_label_set_folder(settings.label_sets)
        ]
    rules = CatalogueRules(
        default_sets=_split_names(settings.default_label_set or ""),
        labels_per_set=settings.max_labels_per_set,
        candidates=settings.max_candidate_labels,
        poll_seconds=settings.label_poll_seconds,
    )
    return Catalogue(
        _read_trained(bundle),
        fixed,
        encoding,
        _open_store(settings, bundle),
        rules,
    )


def read_bundle_sets(bundle: Bundle) -> tuple[Definition, ...]:
    """Reads the label sets of a bundle and checks that they fit its open head; ordered by name.

    Raises:
        BundleError: a set is invalid, does not fit, or its file has changed.
    """
    definitions = []
    head = bundle.card.open_head
    encodes_text = bundle.label_precision("text_encoder") is not None
    for file, content in bundle.read_label_sets().items():
        path = Path(file)
        try:
            definition = parse_label_set(content, path.suffix, path.stem)
            if head is None:
                raise NoOpenHead("the bundle has no open head")
            check_fit(definition, head.embedding_space, encodes_text=encodes_text)
        except InvalidLabelSet as error:
            raise BundleError(f"{file}: {error.reason}") from error
        except LabelSetError as error:
            raise BundleError(f"label set {path.stem}: {error}") from error
        definitions.append(definition)
    return tuple(definitions)


def _split_names(text: str) -> tuple[str, ...]:
    names = (name.strip() for name in text.split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def _read_trained(bundle: Bundle) -> LabelSet | None:
    head = bundle.card.trained_head
    if head is None:
        return None
    return make_trained_set(bundle.labels, version=bundle.card.version, activation=head.activation)


def _open_store(settings: Settings, bundle: Bundle) -> LabelStore | None:
    head = bundle.card.open_head
    if head is None:
        return None
    try:
        database = open_database(settings.label_store)
    except StartError as error:
        if settings.label_store is not None:
            raise
        # Nobody asked for this place, so it is no reason not to predict.
        _log.warning("%s; registrations are refused until label_store names a place", error)
        return None
    limits = Limits(settings.max_label_sets, settings.max_labels)
    return LabelStore(database, head.embedding_space.fingerprint, limits)
