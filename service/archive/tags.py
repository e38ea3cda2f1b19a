"""Which tags a sidecar gets: found labels beside the user's own, none that the user deleted.

Own tags are known by the memory in the sidecar, not by their root. A field that had no tags of the
user gets a copy of those in the other fields: programs read the first field that has tags.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from service.archive.xmp import FIELDS, HIERARCHY, OTHER_FIELDS, SUBJECT, Field, Packet, Tag
from service.bundle.card import fold_name

ROOT = "ml-decoder"
"""Default root of own tags; those of versions without the memory are known by it."""

_WRITTEN = Field("mld:written", "/")
_COPIED = Field("mld:copied", "\0")  # `digiKam:TagsList=trips/holiday`, without a tag of a field
_DROPPED = Field("mld:dropped", "\0")
_REJECTED = Field("mld:rejected", "\0")
_MEMORY = (_WRITTEN, _COPIED, _DROPPED, _REJECTED)

Tags = dict[Field, tuple[Tag, ...] | None]
"""Tags by field; None: there is no such field."""


@dataclass(frozen=True)
class State:
    """A sidecar's tags and memory."""

    tags: Tags
    written: tuple[Tag, ...] = ()  # own tags, with their root
    made: tuple[Field, ...] = ()  # had no tags of the user
    copied: tuple[tuple[Field, Tag], ...] = ()  # tags of the user that were added to these
    dropped: tuple[tuple[Field, Tag], ...] = ()  # copies that the user deleted
    rejected: tuple[str, ...] = ()  # names of own tags that the user deleted


def read_tags(packet: Packet) -> Tags:
    """Reads the tags of all fields; raises ValueError if one is no list."""
    return {field: packet.read(field) for field in (*FIELDS, *OTHER_FIELDS)}


def read_state(packet: Packet) -> State:
    """Reads a sidecar; raises ValueError if one of its fields is no list."""
    tags, memory = read_tags(packet), [packet.read(field) for field in _MEMORY]
    if memory == [None] * len(memory):
        every = (
            tag for field, found in tags.items() if field is not SUBJECT for tag in found or ()
        )
        old = tuple(dict.fromkeys(tag for tag in every if tag[0] == ROOT and len(tag) > 1))
        names = {*old, *(tag[-1:] for tag in old)}
        return State(tags, old, tuple(f for f in FIELDS if names.issuperset(tags[f] or ())))
    written, copied, dropped, rejected = (found or () for found in memory)
    copies = _parse(copied)
    made = tuple(dict.fromkeys(field for field, _ in copies))
    copies = tuple((field, tag) for field, tag in copies if any(tag))
    deleted = tuple(name for (name,) in rejected)
    return State(tags, tuple(written), made, copies, _parse(dropped), deleted)


def write_state(packet: Packet, state: State) -> None:
    """Writes tags and memory; an empty memory is no property."""
    for field, tags in state.tags.items():
        packet.replace(field, tags)
    made = ((field, ("",)) for field in state.made if state.written or state.rejected)
    memory: list[Iterable[Tag]] = [
        state.written,
        [(f"{field.name}={field.separator.join(tag)}",) for field, tag in (*made, *state.copied)],
        [(f"{field.name}={field.separator.join(tag)}",) for field, tag in state.dropped],
        [(name,) for name in state.rejected],
    ]
    for field, found in zip(_MEMORY, memory, strict=True):
        packet.replace(field, [*found] or None)


def _parse(entries: Iterable[Tag]) -> tuple[tuple[Field, Tag], ...]:
    fields = {field.name: field for field in FIELDS}
    parts = (entry[0].partition("=") for entry in entries)
    known = ((fields[name], tag) for name, _, tag in parts if name in fields)
    return tuple((field, tuple(tag.split(field.separator))) for field, tag in known)


def find_rejected(state: State) -> tuple[str, ...]:
    """Returns the names of own tags that the user has deleted until now.

    A tag is deleted if a field that is still there lacks it, or if no field has it. A program that
    drops a field has deleted nothing; but darktable drops two if no tag is left.
    """
    names = {fold_name(name): name for name in state.rejected}
    held = {f: _fold_levels(state.tags[f] or ()) for f in FIELDS if state.tags[f] is not None}
    for tag in state.written:
        is_lost = any(fold_name(tag[-1]) not in levels for levels in held.values())
        if is_lost or not held.keys() & {HIERARCHY, SUBJECT}:
            names.setdefault(fold_name(tag[-1]), tag[-1])
    return tuple(names.values())


def merge(state: State, photo: Tags, wanted: Sequence[Tag], rejected: Sequence[str]) -> State:
    """Returns the sidecar with the wanted tags in place of all earlier own ones.

    Wanted tags that the user has too, or that are rejected, are left out. A field of the sidecar
    replaces the photo's, unless it was made.
    """
    names, users = set(map(fold_name, rejected)), _find_users(state)
    roots = {tag[:-1] for tag in (*state.written, *wanted, (ROOT, ""))} - {()}
    made = [field for field in FIELDS if state.tags[field] is None or field in state.made]
    theirs = _find_in_photo(state, photo, made, roots, names)
    if not any((*users.values(), *theirs.values())) and None in map(state.tags.get, FIELDS):
        for field, tag in state.copied:  # a program dropped the field that they were copied from
            users[field] += [tag] * (tag in (state.tags[field] or ()))
    trees = [tag for each in (users, theirs) for f in each if f is not SUBJECT for tag in each[f]]
    flat = [*users[SUBJECT], *theirs.get(SUBJECT, ())]
    taken = _fold_levels([*trees, *flat]) | names
    labels = {fold_name(tag[-1]): tag for tag in wanted if fold_name(tag[-1]) not in taken}

    # A flat field may have each level of a tree (darktable, Lightroom).
    levels = _fold_levels([*trees, *roots])
    alone = [tag for tag in flat if fold_name(tag[0]) not in levels]
    new: Tags = {}
    copied: list[tuple[Field, Tag]] = []
    dropped: list[tuple[Field, Tag]] = []
    for field, tags in state.tags.items():
        own = [tag[-1:] if field is SUBJECT else tag for tag in labels.values()]
        if field in OTHER_FIELDS:
            own = [tag for tag in own if tag in (tags or ())]
        elif field in made and (labels or rejected):
            source = [tag[-1:] for tag in trees] + flat if field is SUBJECT else trees + alone
            deleted = {_fold(tag) for each, tag in state.dropped if each == field}
            if tags is not None:
                there = set(tags)
                lost = (t for each, t in state.copied if each == field and t not in there)
                deleted.update(map(_fold, lost))
            fitted = _fit(source, field)
            dropped += [(field, tag) for key, tag in fitted.items() if key in deleted]
            if labels or tags is not None:
                known = deleted.union(map(_fold, users[field]))
                copies = [tag for key, tag in fitted.items() if key not in known]
                copied += [(field, tag) for tag in copies]
                own = copies + own
        found = (*users[field], *own)
        new[field] = found if found or tags == () else None  # an empty list of the user's stays
    kept = tuple(field for field in made if new[field]) if labels or rejected else state.made
    return State(new, tuple(labels.values()), kept, tuple(copied), tuple(dropped), tuple(rejected))


def _fit(tags: Iterable[Tag], field: Field) -> dict[Tag, Tag]:
    """Returns tags with the levels that they have in a field, without repetitions."""
    fitted: dict[Tag, Tag] = {}
    for tag in tags:
        levels = tuple(field.separator.join(tag).split(field.separator))
        fitted.setdefault(_fold(levels), levels)
    return fitted


def _find_users(state: State) -> dict[Field, list[Tag]]:
    """Returns the user's tags by field, without own ones and copies."""
    written, copied = set(state.written), set(state.copied)
    users = {
        field: [tag for tag in tags or () if tag not in written and (field, tag) not in copied]
        for field, tags in state.tags.items()
        if field is not SUBJECT
    }
    levels = _fold_levels(tag for tags in users.values() for tag in tags)
    own = {tag[-1] for tag in written} | ({ROOT} if written else set())
    users[SUBJECT] = [
        tag
        for tag in state.tags[SUBJECT] or ()
        if (tag[0] not in own or fold_name(tag[0]) in levels) and (SUBJECT, tag) not in copied
    ]
    return users


def _find_in_photo(
    state: State, photo: Tags, made: list[Field], roots: set[Tag], names: set[str]
) -> dict[Field, list[Tag]]:
    """Returns the user's tags in the photo, by fields that the sidecar does not replace.

    A copy of the sidecar in the photo, as for Lightroom, has own tags too.
    """

    def is_own(tag: Tag) -> bool:
        return tag in state.written or tag[:-1] in roots

    own = {ROOT, *names}
    own |= {
        fold_name(t[-1]) for f in photo if f is not SUBJECT for t in photo[f] or () if is_own(t)
    }
    return {
        field: [tag for tag in tags or () if not is_own(tag) and fold_name(tag[-1]) not in own]
        for field, tags in photo.items()
        if field in made or (field in OTHER_FIELDS and state.tags[field] is None)
    }


def _fold(tag: Tag) -> Tag:
    return tuple(map(fold_name, tag))


def _fold_levels(tags: Iterable[Tag]) -> set[str]:
    return {fold_name(level) for tag in tags for level in tag}
