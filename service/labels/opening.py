"""Opens the catalogue of a bundle as configured by the settings."""

import logging
from pathlib import Path

from service.bundle.reader import Bundle
from service.errors import BundleError, InvalidLabelSet, LabelSetError, NoOpenHead, StartError
from service.labels.catalogue import Catalogue, FixedSet
from service.labels.definition import Definition, check_fit
from service.labels.encoding import LabelEncoders
from service.labels.files import parse_label_set, read_label_set_folder
from service.labels.label_set import make_trained_set
from service.labels.store.database import open_database
from service.labels.store.store import LabelStore, Limits
from service.settings import Settings

logger = logging.getLogger(__name__)


def open_catalogue(settings: Settings, bundle: Bundle, encoding: LabelEncoders | None) -> Catalogue:
    """Reads the label sets of bundle and folder, and prepares the store.

    The catalogue closes `encoding`. Raises `BundleError` for an invalid set of the bundle, and
    `StartError` if the folder or the store cannot be used as configured.
    """
    fixed = [FixedSet(found, bundle.card.version, "bundle") for found in read_bundle_sets(bundle)]
    if settings.label_sets is not None:
        found_sets = read_label_set_folder(settings.label_sets)
        fixed += [FixedSet(found, found.digest[:12], "folder") for found in found_sets]
    names = (name.strip() for name in (settings.default_label_set or "").split(","))
    card = bundle.card
    trained = None
    if card.trained_head is not None:
        trained = make_trained_set(bundle.labels, card.trained_head, version=card.version)
    return Catalogue(
        trained,
        fixed,
        encoding,
        _open_store(settings, bundle),
        default_sets=tuple(dict.fromkeys(name for name in names if name)),
        max_candidates=settings.max_candidate_labels,
        poll_seconds=settings.label_poll_seconds,
    )


def read_bundle_sets(bundle: Bundle) -> tuple[Definition, ...]:
    """Reads the label sets of a bundle, ordered by name.

    Raises `BundleError` if a set is invalid, does not fit the open head, or its file has changed.
    """
    definitions = []
    head = bundle.card.open_head
    encodes_text = bundle.label_precision("text_encoder") is not None
    for file, content in bundle.read_label_sets().items():
        path = Path(file)
        try:
            definition = parse_label_set(content, path.suffix, path.stem)
            if head is None:
                raise NoOpenHead
            space = head.embedding_space
            definitions.append(check_fit(definition, space, encodes_text=encodes_text))
        except InvalidLabelSet as error:
            raise BundleError(f"label set {file}: {error.reason}") from error
        except LabelSetError as error:
            raise BundleError(f"label set {file}: {error.describe()}") from error
    return tuple(definitions)


def _open_store(settings: Settings, bundle: Bundle) -> LabelStore | None:
    head = bundle.card.open_head
    if head is None:
        return None
    try:
        database = open_database(settings.label_store)
    except StartError as error:
        if settings.label_store is not None:
            raise
        # The user did not ask for the default place, so predictions go on without it.
        logger.warning("%s; registrations are refused until ML_DECODER_LABEL_STORE is set", error)
        return None
    limits = Limits(settings.max_label_sets, settings.max_labels, settings.max_labels_per_set)
    return LabelStore(database, head.embedding_space.fingerprint, limits)
