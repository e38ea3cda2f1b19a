"""Which tags a sidecar gets: found labels beside the user's own, none that the user deleted.

Own tags are known by the memory in the sidecar, not by their root. A field without tags of the
user's own gets a copy of those in other fields: programs read the first field that has tags.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from service.archive.xmp import FIELDS, READ_ONLY, SUBJECT, Field, Packet, Tag
from service.bundle.card import fold_name

ROOT = "ml-decoder"
"""Default root of own tags; those of versions without the memory are known by it."""

_TREES = tuple(field for field in FIELDS if field is not SUBJECT)
_WRITTEN = Field("mld:written", "/")
_COPIED = Field("mld:copied", "\0")  # `digiKam:TagsList=trips/holiday`
_REJECTED = Field("mld:rejected", "\0")
_MEMORY = (_WRITTEN, _COPIED, _REJECTED)


class UserTags(NamedTuple):
    """Tags of the user in places that are never written, as the photo's own file."""

    trees: tuple[Tag, ...] = ()
    flat: tuple[Tag, ...] = ()


@dataclass(frozen=True)
class State:
    """A sidecar's tags by field (None: it has no such field) and memory."""

    tags: dict[Field, tuple[Tag, ...] | None]
    written: tuple[Tag, ...]  # own tags, with their root
    copied: tuple[tuple[Field, Tag], ...]  # tags of the user that were added to a field
    rejected: tuple[str, ...]  # names of own tags that the user deleted


def read_state(packet: Packet) -> State:
    """Reads a sidecar; raises ValueError if one of its fields is no list."""
    tags = {field: packet.read(field) for field in FIELDS}
    memory = [packet.read(field) for field in _MEMORY]
    written, copied, rejected = (found or () for found in memory)
    if memory == [None, None, None]:
        trees = (tag for field in _TREES for tag in tags[field] or ())
        written = tuple(dict.fromkeys(tag for tag in trees if tag[0] == ROOT and len(tag) > 1))
    fields = {field.name: field for field in FIELDS}
    copies = [(fields.get(name), tag) for name, _, tag in (c[0].partition("=") for c in copied)]
    return State(
        tags,
        written,
        tuple((field, tuple(tag.split(field.separator))) for field, tag in copies if field),
        tuple(name for (name,) in rejected),
    )


def write_state(packet: Packet, state: State) -> None:
    """Writes tags and memory; an empty memory is no property."""
    for field, tags in state.tags.items():
        packet.replace(field, tags)
    copied = [(f"{field.name}={field.separator.join(tag)}",) for field, tag in state.copied]
    rejected = [(name,) for name in state.rejected]
    for field, memory in zip(_MEMORY, (state.written, copied, rejected), strict=True):
        packet.replace(field, memory or None)


def read_user_tags(packet: Packet, fields: Sequence[Field] = (*FIELDS, *READ_ONLY)) -> UserTags:
    """Reads the tags of fields that are never written; raises ValueError as `read_state`."""
    trees = (tag for field in fields if field is not SUBJECT for tag in packet.read(field) or ())
    return UserTags(tuple(trees), packet.read(SUBJECT) or () if SUBJECT in fields else ())


def find_rejected(state: State) -> tuple[str, ...]:
    """Returns the names of own tags that the user has deleted until now.

    A tag is deleted if a field that is still there lacks it, or if no field has it: a program that
    drops a whole field has deleted nothing.
    """
    names = {fold_name(name): name for name in state.rejected}
    held = [_fold_levels(tags) for tags in state.tags.values() if tags is not None]
    for tag in state.written:
        if not held or any(fold_name(tag[-1]) not in levels for levels in held):
            names.setdefault(fold_name(tag[-1]), tag[-1])
    return tuple(names.values())


def merge(state: State, outside: UserTags, wanted: Iterable[Tag], rejected: Sequence[str]) -> State:
    """Returns the sidecar with the wanted tags in place of all earlier own ones.

    Wanted tags that the user has too, or that are rejected, are left out.
    """
    written, earlier = set(state.written), set(state.copied)
    names = set(map(fold_name, rejected))
    trees = [t for t in outside.trees if t not in written and fold_name(t[-1]) not in names]
    in_sidecar = [tag for f in _TREES for tag in state.tags[f] or () if tag not in written]
    # A flat field may have each level of a tree (darktable, Lightroom).
    levels = _fold_levels([*trees, *in_sidecar])
    own_flat = {(name,) for tag in written for name in tag if fold_name(name) not in levels}
    flat = [tag for tag in outside.flat if fold_name(tag[-1]) not in names]
    if not written.isdisjoint(outside.trees):  # the sidecar was copied into the photo
        flat = [tag for tag in flat if tag not in own_flat]

    own = {field: own_flat if field is SUBJECT else written for field in FIELDS}
    kept = {f: [tag for tag in tags or () if tag not in own[f]] for f, tags in state.tags.items()}
    users = {f: tags * any((f, tag) not in earlier for tag in tags) for f, tags in kept.items()}
    if None in state.tags.values() and not (any(users.values()) or trees or flat):
        users = kept  # a program dropped the field that they are copied from
    trees += [tag for field in _TREES for tag in users[field]]
    flat += users[SUBJECT]

    taken = _fold_levels([*trees, *flat]) | names
    labels = {fold_name(tag[-1]): tag for tag in wanted if fold_name(tag[-1]) not in taken}
    tree_copies = {tuple(map(fold_name, tag)): tag for tag in trees}
    levels = _fold_levels(trees)
    tree_copies |= {(fold_name(tag[-1]),): tag for tag in flat if fold_name(tag[-1]) not in levels}
    flat_copies = {fold_name(tag[-1]): tag[-1:] for tag in (*trees, *flat)}
    # A copy that a field lacks was deleted by the user: it is not made again.
    deleted = {
        fold_name(tag[-1])
        for field, tag in state.copied
        if (held := state.tags[field]) is not None and fold_name(tag[-1]) not in _fold_levels(held)
    }
    new: dict[Field, tuple[Tag, ...] | None] = {}
    copied: list[tuple[Field, Tag]] = []
    for field in FIELDS:
        tags = users[field]
        if labels and not tags:
            copies = (flat_copies if field is SUBJECT else tree_copies).values()
            fitted = [tuple(field.separator.join(tag).split(field.separator)) for tag in copies]
            copied += [(field, tag) for tag in fitted]
            tags = [tag for tag in fitted if fold_name(tag[-1]) not in deleted]
        tags += [tag[-1:] if field is SUBJECT else tag for tag in labels.values()]
        # An empty list of the user's stays one.
        new[field] = tuple(tags) if tags or state.tags[field] == () else None
    return State(new, tuple(labels.values()), tuple(copied), tuple(rejected))


def _fold_levels(tags: Iterable[Tag]) -> set[str]:
    return {fold_name(level) for tag in tags for level in tag}
