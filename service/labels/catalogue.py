"""The catalogue: which label sets a process has, and which of them a request gets."""

import asyncio
import hashlib
import logging
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from service import errors
from service.bundle.card import OpenHead, fold_name
from service.bundle.reader import Bundle
from service.engine.shared_arrays import SharedArrays
from service.labels.builder import LabelSetBuilder, PhotoSpace
from service.labels.definition import (
    Definition,
    LabelRow,
    check_candidates,
    refuse_duplicates,
)
from service.labels.encoders import LabelEncoders
from service.labels.files import read_bundle_sets, read_bundle_words, read_label_set_folder
from service.labels.label_set import (
    CANDIDATE_SET,
    RESERVED_NAMES,
    LabelSet,
    Origin,
    make_trained_set,
)
from service.labels.registered_sets import RegisteredSets
from service.labels.sources.learnt import list_contents
from service.labels.store.database import open_database
from service.labels.store.store import LabelStore, Limits
from service.labels.whitening import Whitening, read_whitening
from service.labels.words import NAMES, Dictionary, Lexicon, Words, choose_words, pack_words
from service.question import Question
from service.settings import Settings

_SPACE_WITHOUT_TEXTS = "examples"
"""Embedding space in the store of sets of a bundle without an open head."""
# To index the words of so many labels takes 20 ms.
_MAX_INLINE_LABELS = 2000

logger = logging.getLogger(__name__)


def open_catalogue(
    settings: Settings,
    bundle: Bundle,
    encoders: LabelEncoders | None,
    arrays: SharedArrays | None = None,
) -> "Catalogue":
    """Reads the sets of bundle and folder, and prepares the store.

    The catalogue closes `encoders`; `arrays` are those of several processes. Raises `BundleError`
    if a set of the bundle cannot be used, `StartError` if one of the folder or the store cannot.
    """
    card = bundle.card
    words = read_bundle_words(bundle)
    fixed = [
        FixedSet(_add_words(labels, words), card.version, "bundle")
        for labels in read_bundle_sets(bundle)
    ]
    if settings.label_sets is not None:
        of_folder = read_label_set_folder(settings.label_sets, settings.max_labels_per_set)
        fixed += [FixedSet(labels, _make_version(labels), "folder") for labels in of_folder]
    trained = None
    if card.trained_head is not None:
        trained = make_trained_set(
            bundle.labels, card.trained_head, version=card.version, words=words
        )
    content = bundle.read_background()
    whitening = None if content is None else read_whitening(content)
    return Catalogue(
        trained,
        fixed,
        LabelSetBuilder(encoders, PhotoSpace(bundle.photo_fingerprint, whitening), arrays),
        _open_store(settings, card.open_head, whitening),
        settings,
        words=words,
    )


def _add_words(definition: Definition, words: Mapping[str, Words]) -> Definition:
    """Returns a set of the bundle; what it says of a label comes before the bundle's words."""
    known = choose_words(words, definition.names)
    return replace(definition, words={**known, **definition.words})


def _open_store(
    settings: Settings, head: OpenHead | None, whitening: Whitening | None
) -> LabelStore | None:
    if head is None and whitening is None:
        return None
    try:
        database = open_database(settings.label_store)
    except errors.StartError as error:
        if settings.label_store is not None:
            raise
        # The user did not ask for the default file, so predictions work without it.
        logger.warning("%s; registrations are refused until ML_DECODER_LABEL_STORE is set", error)
        return None
    limits = Limits(settings.max_label_sets, settings.max_labels, settings.max_labels_per_set)
    space = _SPACE_WITHOUT_TEXTS if head is None else head.embedding_space.fingerprint
    return LabelStore(database, space, limits)


def _make_version(definition: Definition) -> str:
    contents = [label.encode() + content for label, _, content in list_contents(definition.lessons)]
    if definition.words:
        contents.append(pack_words(definition.words).encode())
    if not contents:
        return definition.digest[:12]
    return hashlib.sha256(b"".join((definition.digest.encode(), *contents))).hexdigest()[:12]


class FixedSet(NamedTuple):
    """A set of the bundle or of a folder, not yet encoded."""

    definition: Definition
    version: str
    origin: Origin


class Catalogue:
    """Label sets by name, for one event loop; `encoders` is None without an open head.

    `registered` are those of the store; None without one.
    """

    def __init__(  # noqa: PLR0913 - words are a keyword
        self,
        trained: LabelSet | None,
        fixed: Sequence[FixedSet],
        builder: LabelSetBuilder,
        store: LabelStore | None,
        settings: Settings,
        *,
        words: Mapping[str, Words] | None = None,
    ) -> None:
        """Loads nothing before `start`; of fixed sets of the same name, the last one counts.

        `words` are the bundle's, also of parents.

        Of the default sets of the settings, those that are not the bundle's come first. Without
        any, a request that names none gets the trained labels and the bundle's sets, in this order;
        if there are neither, the first fixed set.
        """
        names = map(str.strip, (settings.default_label_set or "").split(","))
        default_sets = tuple(dict.fromkeys(filter(None, names)))
        self._pending = {entry.definition.name: entry for entry in fixed}
        self._fixed: dict[str, LabelSet] = {} if trained is None else {trained.name: trained}
        self._names = (*self._fixed, *self._pending)
        # A folder's set of the same name replaces a bundle's set here too.
        shipped = [entry.definition.name for entry in fixed if entry.origin == "bundle"]
        of_users = {name for name, entry in self._pending.items() if entry.origin == "folder"}
        of_bundle = {*self._fixed, *shipped} - of_users
        self._default = (
            # Users' sets first: of a label in several, the first set's threshold counts.
            tuple(sorted(default_sets, key=of_bundle.__contains__))
            or (*self._fixed, *shipped)
            or (*self._pending,)[:1]
        )
        self._builder = builder
        self.encoders: LabelEncoders | None = builder.encoders
        self.whitening: Whitening | None = builder.photos.whitening
        self._is_default_given = bool(default_sets)
        self._max_candidates = settings.max_candidate_labels
        shipped_sets = (entry.definition for entry in fixed if entry.origin == "bundle")
        dictionaries = [Dictionary(labels.names, labels.words) for labels in shipped_sets]
        of_trained = () if trained is None else (trained.dictionary,)
        every = (*of_trained, *dictionaries, Dictionary((), words))
        self.lexicon = Lexicon(every, settings.lang)
        """What words mean by the bundle."""
        self.registered: RegisteredSets | None = None
        if store is not None and (self.encoders or self.whitening):
            self.registered = RegisteredSets(
                store, builder, settings.label_poll_seconds, self._names
            )

    @property
    def default_columns(self) -> list[str] | None:
        """The first default set, for requests of all scores; None if the settings name defaults."""
        return None if self._is_default_given else list(self._default[:1])

    @property
    def store_revision(self) -> int:
        """Revision of the store that is served; 0 without a store or before it was read."""
        return 0 if self.registered is None else max(0, self.registered.revision)

    @property
    def store_answers(self) -> bool:
        """Whether the last poll of the store succeeded; true without a store."""
        return self.registered is None or self.registered.failure is None

    def list_sets(self) -> tuple[LabelSet, ...]:
        """Returns every set: the model's, the bundle's, the folder's, then the store's by name."""
        stored = {} if self.registered is None else self.registered.by_name
        shown = (labels for name, labels in sorted(stored.items()) if name not in self._fixed)
        return (*self._fixed.values(), *shown)

    def get(self, name: str) -> LabelSet | None:
        """Returns a set that this process has loaded; else None."""
        stored = {} if self.registered is None else self.registered.by_name
        return self._fixed.get(name) or stored.get(name)

    def find(self, name: str) -> LabelSet:
        """Returns a set. Raises `LabelSetNotFound`, `StoreUnavailable` if it may be stored."""
        labels = self.get(name)
        if labels is None:
            self._check_store()
            raise errors.LabelSetNotFound(name, self._list_names())
        return labels

    async def start(self) -> None:
        """Encodes the fixed sets, loads the store's, and starts polling.

        Raises `StartError` if a fixed set does not fit the bundle.
        """
        pending, self._pending = self._pending, {}  # frees the embeddings
        for name, entry in pending.items():
            self._fixed[name] = await self._encode_fixed(entry)
        if self.registered is not None:
            await self.registered.start()
        lang = self.lexicon.lang
        if lang and not any(s.dictionary.find_languages(lang) for s in self.list_sets()):
            logger.warning("no label set has translations into the default language %s", lang)
        for name in self._default:
            # No StartError: a client that deletes the set could prevent the next start.
            if self.get(name) is None:
                known = errors.list_names(self._list_names())
                logger.warning(
                    "the default label set %s is missing: requests must name one (%s)", name, known
                )

    async def stop(self) -> None:
        """Closes the store and the encoders; later calls that need them raise `Draining`."""
        if self.registered is not None:
            await self.registered.stop()
        if self.encoders is not None:
            self.encoders.close()

    async def pin(self, question: Question) -> tuple[LabelSet, ...]:
        """Returns sets as they are now, candidates first.

        Raises `UnknownLabelSet`, `StoreUnavailable` if they may be stored, and `VersionNotReached`.
        """
        names = tuple(dict.fromkeys(question.label_set or ()))
        if not names and not question.candidate_labels:
            names = self._default
        if question.min_version:  # every store has reached 0
            if self.registered is None:
                raise errors.VersionNotReached(question.min_version, self.store_revision)
            await self.registered.reach(question.min_version, names)
        unknown = tuple(name for name in names if self.get(name) is None)
        if unknown or not (names or question.candidate_labels):
            self._check_store()
            raise errors.UnknownLabelSet(
                unknown, self._list_names(), by_default=not question.label_set
            )
        sets = tuple(self.find(name) for name in names)
        if question.candidate_labels:
            return (await self._make_candidates(question, sets), *sets)
        return sets

    def adopt_words(
        self, definition: Definition, lang: str | None, known: Container[str] = ()
    ) -> tuple[Definition, dict[str, str]]:
        """Returns a set with names and words of the bundle for labels that have nothing else.

        Labels that have a prompt, an embedding, words or lessons, or are `known`, stay as they are.
        Also returns the words that mean another name. Raises `UnknownLanguage`, `AmbiguousWord`, or
        `InvalidLabelSet` if two words with different thresholds mean one label.
        """
        lexicon, rows, found = self.lexicon.speak(lang or NAMES), dict[str, LabelRow](), {}
        own = {*definition.words, *definition.lessons}
        for name, row in definition.rows.items():
            is_plain = row.prompt is None and row.embedding is None and name not in own
            if is_plain and name not in known and (meant := lexicon.find(name)):
                found[name] = meant
            label = found.get(name, name)
            if rows.setdefault(label, row) != row:
                raise errors.InvalidLabelSet(
                    f"{errors.quote(name)} means {errors.quote(label)}, which is there with "
                    "another threshold: remove one"
                )
        words = {n: w for n in found.values() if n not in known and (w := lexicon.get(n))}
        adopted = replace(definition.with_rows(rows), words={**words, **definition.words})
        return adopted, {name: meant for name, meant in found.items() if meant != name}

    def writable(self, name: str) -> RegisteredSets:
        """Returns the sets to write.

        Raises `NoOpenHead` or `StoreReadOnly` if none can be written, and `LabelSetReadOnly`.
        """
        if self.encoders is None and self.whitening is None:
            raise errors.NoOpenHead
        if name in self._names or name in RESERVED_NAMES:
            raise errors.LabelSetReadOnly(name)
        if self.registered is None:
            raise errors.StoreReadOnly("no label store is available: set label_store")
        return self.registered

    def for_learning(self, name: str) -> tuple[RegisteredSets, Whitening]:
        """Returns the sets as `writable`, and the whitening of photos.

        Raises `NoBackground` or `ScoresCompete` if labels of `name` cannot learn.
        """
        if self.whitening is None:
            raise errors.NoBackground
        sets, known, texts = self.writable(name), self.get(name), self.encoders
        activation = known and known.activation
        if known is None and texts and texts.encodes_text and not texts.head.calibration:
            activation = texts.head.activation
        if activation == "softmax":
            raise errors.ScoresCompete
        return sets, self.whitening

    async def refresh(self) -> None:
        """Loads the writes of other processes. Raises `StoreUnavailable` if it cannot."""
        if self.registered is not None:
            await self.registered.refresh()

    def _list_names(self) -> list[str]:
        return [labels.name for labels in self.list_sets()]

    def _check_store(self) -> None:
        if self.registered is not None and self.registered.failure is not None:
            raise errors.StoreUnavailable(self.registered.failure)

    async def _encode_fixed(self, entry: FixedSet) -> LabelSet:
        definition, builder = entry.definition, self._builder
        lessons = definition.lessons if definition.encoder == builder.photos.encoder else {}
        try:
            if definition.name in RESERVED_NAMES:
                raise errors.InvalidLabelSet(
                    f"The names {' and '.join(sorted(RESERVED_NAMES))} are reserved"
                )
            definition = builder.check(definition, definition.lessons)
            embeddings = await builder.embed(definition)
            labels = await builder.make(definition, embeddings, entry.version, entry.origin)
            return await builder.teach(labels, lessons, definition.lessons)
        except errors.LabelSetError as error:
            raise errors.StartError(f"label set {definition.name}: {error.describe()}") from error

    def _find_prompt(self, name: str, sets: Sequence[LabelSet]) -> str | None:
        having = (s for s in (*sets, *self._fixed.values()) if name in s.positions)
        return next((s.prompts[s.positions[name]] for s in having), None)

    async def _make_candidates(self, question: Question, sets: Sequence[LabelSet]) -> LabelSet:
        names = tuple(question.candidate_labels or ())
        if self.encoders is None:
            raise errors.NoOpenHead
        check_candidates(names, self._max_candidates)
        refuse_duplicates(names)
        lexicon = self.lexicon.speak(question.lang, (labels.dictionary for labels in sets))

        def find_all() -> dict[str, str]:
            return {name: meant for name in names if (meant := lexicon.find(name))}

        is_quick = sum(labels.num_labels for labels in sets) <= _MAX_INLINE_LABELS
        found = find_all() if is_quick else await asyncio.to_thread(find_all)
        resolved = {n: meant for n, meant in found.items() if fold_name(n) != fold_name(meant)}
        scored = tuple(resolved.get(name, name) for name in names)
        prompts = tuple(
            self._find_prompt(resolved[n], sets) if n in resolved else None for n in names
        )
        definition = Definition(CANDIDATE_SET, scored, prompts, (None,) * len(names))
        self._builder.check(definition, ())
        vectors = await self.encoders.encode_candidates(definition)
        labels = self.encoders.make_set(definition, vectors, definition.digest[:12], "request")
        if not found:
            return labels
        words = {name: words for name, meant in found.items() if (words := lexicon.get(meant))}
        dictionary = Dictionary(names, words)
        return replace(labels, names=names, dictionary=dictionary, resolved=resolved)
