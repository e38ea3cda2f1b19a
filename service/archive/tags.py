"""Which tags a sidecar gets: found labels beside the user's own, none that the user deleted.

Own tags are known by the memory in the sidecar, not by their root. A field that had no tags of the
user gets a copy of those in the other fields: programs read the first field that has tags.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as make_field
from typing import NamedTuple

from service.archive import ROOT, SEPARATOR, Tag
from service.archive.xmp import FIELDS, OTHER_FIELDS, SUBJECT, Field, Packet
from service.bundle.card import fold_name

_WRITTEN = Field("mld:written", "/")
_COPIED = Field("mld:copied", "\0")  # `digiKam:TagsList=`, `digiKam:TagsList=trips/holiday`
_REJECTED = Field("mld:rejected", "\0")
_EMBEDDED = Field("mld:embedded", "/")
_OF_PHOTO = ("photo",)  # among the copies
_BELOW = "root="  # there too: a root that is not all that is above the first own tag
_MEANS = "label="  # there too, `label=Katze/cat`: the label of a tag that has another name

Tags = dict[Field, tuple[Tag, ...] | None]
"""Tags by field; None: there is no such field."""
MakeTags = Callable[[Sequence[str], set[str]], dict[Tag, str]]
"""Makes wanted tags, with their labels, from rejected names and keys of the user's tags."""


@dataclass(frozen=True)
class State:
    """A sidecar's tags and memory."""

    tags: Tags
    written: tuple[Tag, ...]  # own tags, with their root and parents
    # Of fields that had no tags of the user: the user's tags that were copied to them. Those that
    # a field lacks now, the user has deleted there.
    copies: dict[Field, tuple[Tag, ...]]
    rejected: tuple[str, ...]  # names of own tags that the user deleted, and their labels
    of_photo: bool = False  # the sidecar was made, from the XMP in the photo
    embedded: tuple[Tag, ...] = ()  # own tags in the photo, which got a copy of the sidecar
    root: Tag = ()  # of the written tags
    # Of names of own tags, deleted ones too: the label, if it has another name.
    labels: dict[str, str] = make_field(default_factory=dict)

    def list_deleted(self, rejected: Sequence[str]) -> tuple[str, ...]:
        """Returns rejected names, without those that are there as the label of another one."""
        others = {self.labels.get(name) for name in rejected}
        return tuple(name for name in rejected if name not in others)


def read_tags(packet: Packet) -> Tags:
    """Reads the tags of all fields; raises ValueError if one is no list."""
    return {field: packet.read(field) for field in (*FIELDS, *OTHER_FIELDS)}


def read_state(packet: Packet) -> State:
    """Reads a sidecar; raises ValueError if one of its fields is no list."""
    tags = read_tags(packet)
    written, copied, rejected = (packet.read(field) for field in (_WRITTEN, _COPIED, _REJECTED))
    if written or copied or rejected:
        names = tuple(name for (name,) in rejected or ())
        copies = _parse_copies(copied or ())
        embedded = packet.read(_EMBEDDED) or ()
        root = written[0][:-1] if written else ()  # up to version 1.1, tags have no parents
        labels = {}
        for (entry,) in copied or ():
            if entry.startswith(_BELOW):
                root = tuple(filter(None, entry.removeprefix(_BELOW).split("/")))
            elif entry.startswith(_MEANS):
                name, _, labels[name] = entry.removeprefix(_MEANS).partition("/")
        is_of_photo = _OF_PHOTO in (copied or ())
        return State(tags, written or (), copies, names, is_of_photo, embedded, root, labels)
    old = tuple(dict.fromkeys(tag for tag in _list_trees(tags) if tag[0] == ROOT and len(tag) > 1))
    own = {*old, *(tag[-1:] for tag in old)}
    made = (field for field in FIELDS if own.issuperset(tags[field] or ()))
    return State(tags, old, dict.fromkeys(made, ()), (), root=(ROOT,) * bool(old))


def begin_state(packet: Packet) -> State:
    """Returns the state of a new sidecar, which is a copy of the XMP in the photo."""
    state = read_state(packet)
    users = _find_users(replace(state, copies={}))
    return replace(state, copies={field: tuple(users[field]) for field in FIELDS}, of_photo=True)


def _parse_copies(entries: Sequence[Tag]) -> dict[Field, tuple[Tag, ...]]:
    copies = {}
    for field in FIELDS:
        start = f"{field.name}="
        tags = [entry.removeprefix(start) for (entry,) in entries if entry.startswith(start)]
        if tags:
            copies[field] = tuple(tuple(tag.split(field.separator)) for tag in tags if tag)
    return copies


def write_state(packet: Packet, state: State) -> None:
    """Writes tags and memory; an empty memory is no property."""
    for field, tags in state.tags.items():
        packet.replace(field, tags)
    copied = [
        (f"{field.name}={field.separator.join(tag)}",)
        for field, copies in state.copies.items()
        for tag in ((), *copies)
    ]
    if state.written and state.root != state.written[0][:-1]:
        copied.append((_BELOW + "/".join(state.root),))
    copied += [(f"{_MEANS}{name}/{label}",) for name, label in state.labels.items()]
    packet.replace(_WRITTEN, state.written or None)
    packet.replace(_COPIED, copied + [_OF_PHOTO] * state.of_photo or None)
    packet.replace(_REJECTED, [(name,) for name in state.rejected] or None)
    packet.replace(_EMBEDDED, state.embedded or None)


def find_rejected(state: State, photo: Tags) -> tuple[str, ...]:
    """Returns the names of own tags that the user has deleted until now, and of their labels.

    A tag is deleted if a field that is still there lacks it, or if no field has it: a program that
    drops a whole field has deleted nothing. A tag that was in the photo is deleted if it is not
    there any more, but other tags are.
    """
    names = {fold_name(name): name for name in state.rejected}
    roots = {tag[:-1] for tag in state.written}
    held = [_fold_levels(tags, roots) for f in FIELDS if (tags := state.tags[f]) is not None]
    for tag in state.written:
        if not held or any(fold_name(tag[-1]) not in levels for levels in held):
            names.setdefault(fold_name(tag[-1]), tag[-1])
    if in_photo := {*_list_trees(photo)}:
        lost = (tag[-1] for tag in state.embedded if tag not in in_photo)
        names = {fold_name(name): name for name in lost} | names
    for label in [label for name, label in state.labels.items() if fold_name(name) in names]:
        names.setdefault(fold_name(label), label)
    return tuple(names.values())


def merge(
    state: State, photo: Tags, root: Tag, make_tags: MakeTags, rejected: Sequence[str]
) -> State:
    """Returns the sidecar with the wanted tags, all below `root`, in place of earlier own ones.

    Separators in wanted tags become `-`. Wanted tags that the user has too, as a tag, a level or
    a part of a level, or that are rejected, are left out, as is the second of a name.
    """
    users, in_photo, embedded, made, trees, flat, alone = _find_owners(state, photo, root, rejected)

    # The other fields' separators split a level, so that both forms are tags of the user.
    texts = [text for tag in (*trees, *flat) for text in (*tag, "/".join(tag))]
    names = [n for text in texts for n in (SEPARATOR.sub("-", text), *SEPARATOR.split(text))]
    taken = {*map(fold_name, names)}
    wanted = dict[str, tuple[Tag, str]]()
    for levels, label in make_tags(rejected, taken).items():
        *tag, meant = (SEPARATOR.sub("-", text).strip() for text in (*levels, label))
        wanted.setdefault(fold_name(tag[-1]), (tuple(tag), meant))
    taken |= {*map(fold_name, rejected)}
    own = dict(row for name, row in wanted.items() if name not in taken)

    sources: dict[Field, Sequence[Tag]] = dict.fromkeys(FIELDS, trees + alone)
    sources[SUBJECT] = [tag[-1:] for tag in trees] + flat
    lost = _find_lost(state)
    is_needed = bool(own or rejected or any(lost.values()))
    if not is_needed:  # the memory
        sources |= {f: in_photo[f] * state.of_photo for f in FIELDS if not users[f]}
    merged: Tags = {}
    copies = {}
    for field, tags in state.tags.items():
        new = [tag[-1:] if field is SUBJECT else tag for tag in own]
        if field in OTHER_FIELDS:
            new = [tag for tag in new if tag in (tags or ())]  # digiKam has added them
        elif field in made:
            copied, deleted = _copy(sources[field], users[field], lost.get(field, ()), field)
            if own or tags is not None:
                new = [*copied, *new]
            if is_needed and (users[field] or new or deleted):
                copies[field] = (*copied, *deleted)
        new = users[field] + new
        merged[field] = tuple(new) if new or tags == () else None  # an empty list stays
    of_photo = state.of_photo and is_needed
    noted = {*embedded, *own}
    seen = [tag for tag in dict.fromkeys(_list_trees(photo)) if tag in noted] * is_needed
    known = {*state.list_deleted(rejected), *(tag[-1] for tag in (*own, *seen))}
    pairs = (state.labels | {tag[-1]: label for tag, label in own.items()}).items()
    labels = {n: label for n, label in pairs if n in known and fold_name(n) != fold_name(label)}
    memory = copies, tuple(rejected), of_photo, tuple(seen), root * bool(own), labels
    return State(merged, tuple(own), *memory)


def list_users(state: State, photo: Tags, rejected: Sequence[str]) -> list[Tag]:
    """Returns the user's tags of sidecar and photo, less copies that the user deleted in a field.

    A tag of several fields may be there as often, and in several spellings.
    """
    owners = _find_owners(state, photo, state.root, rejected)
    lost = {(f, _fold(tag)) for f, tags in _find_lost(state).items() for tag in tags}

    def is_lost(tag: Tag, field: Field) -> bool:
        return (field, _fold(_fit(tag[-1:] if field is SUBJECT else tag, field))) in lost

    found = owners.trees + owners.alone
    return [tag for tag in found if not any(is_lost(tag, field) for field in FIELDS)]


def forget_lost(state: State) -> State:
    """Returns a state that does not remember which copies the user has deleted."""
    lost = _find_lost(state)
    there = {f: tuple(t for t in c if t not in lost[f]) for f, c in state.copies.items()}
    return replace(state, copies=there)


def _find_lost(state: State) -> dict[Field, list[Tag]]:
    """Returns the copies that the user has deleted, by field; dropping one field deletes none."""
    is_there = any(state.tags[field] is not None for field in FIELDS)
    lost = {}
    for field, copies in state.copies.items():
        left = state.tags[field]
        if left is None and is_there:
            left = copies
        there = {*(left or ())}
        lost[field] = [tag for tag in copies if tag not in there]
    return lost


def _copy(
    sources: Sequence[Tag], users: Sequence[Tag], lost: Sequence[Tag], field: Field
) -> tuple[list[Tag], list[Tag]]:
    """Returns the tags to copy to a field, and those of them that the user has deleted there."""
    fitted: dict[Tag, Tag] = {}
    for tag in sources:
        levels = _fit(tag, field)
        fitted.setdefault(_fold(levels), levels)
    deleted = [tag for tag in lost if _fold(tag) in fitted]
    for tag in (*users, *deleted):
        fitted.pop(_fold(tag), None)
    return [*fitted.values()], deleted


class _Owners(NamedTuple):
    users: dict[Field, list[Tag]]  # the user's tags in the sidecar
    in_photo: dict[Field, list[Tag]]  # and in the photo
    embedded: list[Tag]  # own ones in the photo
    made: list[Field]  # in which the sidecar does not replace the photo's tags
    trees: list[Tag]  # the user's of both
    flat: list[Tag]
    alone: list[Tag]  # flat ones that are no level of a tree


def _find_owners(state: State, photo: Tags, root: Tag, rejected: Sequence[str]) -> _Owners:
    made = [field for field, tags in state.tags.items() if not tags or field in state.copies]
    roots = {(ROOT,), state.root, root} - {()}
    known = {*state.written, *state.embedded}
    users = _find_users(state)
    embedded = [
        tag
        for tag in dict.fromkeys(_list_trees(photo))
        if tag in known or tag[:-1] in roots or (tag[0] == ROOT and len(tag) > 1)
    ]
    deleted = state.list_deleted(rejected)
    others = {fold_name(name) for name in (ROOT, *deleted, *(tag[-1] for tag in embedded))}
    in_photo = {
        field: [tag for tag in tags or () if fold_name(tag[-1]) not in others]
        for field, tags in photo.items()
    }
    expanded = _find_expanded(photo, embedded)
    in_photo[SUBJECT] = [tag for tag in in_photo[SUBJECT] if tag[0] not in expanded]
    theirs = {field: in_photo[field] for field in made}
    if not any((*users.values(), *theirs.values())) and None in map(state.tags.get, FIELDS):
        # A program dropped the field that the copies are of: they are all that is left.
        users = _find_users(replace(state, copies={}))
    trees = [*_list_trees(users), *_list_trees(theirs)]
    flat = [*users[SUBJECT], *theirs.get(SUBJECT, ())]
    # Programs write each level of a tree as a flat tag, too (darktable, Lightroom).
    levels = _fold_levels([*trees, *roots])
    alone = [tag for tag in flat if fold_name(tag[0]) not in levels]
    return _Owners(users, in_photo, embedded, made, trees, flat, alone)


def _find_users(state: State) -> dict[Field, list[Tag]]:
    """Returns the user's tags in the sidecar, without own ones and copies."""
    users = {}
    for field, tags in state.tags.items():
        others = {*state.copies.get(field, ()), *(() if field is SUBJECT else state.written)}
        users[field] = [tag for tag in tags or () if tag not in others]
    # Of a flat tag, the name says whether it is an own one.
    levels = _fold_levels(_list_trees(users))
    own = {ROOT, *(tag[-1] for tag in state.written), *_find_expanded(state.tags, state.written)}
    users[SUBJECT] = [
        tag for tag in users[SUBJECT] if tag[0] not in own or fold_name(tag[0]) in levels
    ]
    return users


def _find_expanded(tags: Tags, own: Collection[Tag]) -> set[str]:
    """Returns parents that a program wrote as flat tags: darktable writes ROOT and all levels."""
    if (ROOT,) not in (tags[SUBJECT] or ()):
        return set()
    others = _fold_levels(tag for tag in _list_trees(tags) if tag not in own)
    levels = {level for tag in own if tag[0] == ROOT for level in tag[1:-1]}
    return {level for level in levels if fold_name(level) not in others}


def _list_trees(tags: Mapping[Field, Sequence[Tag] | None]) -> list[Tag]:
    """Returns the tags of all fields but the flat one."""
    return [tag for field, found in tags.items() if field is not SUBJECT for tag in found or ()]


def _fit(tag: Tag, field: Field) -> Tag:
    """Returns a tag as a field has it: a level may have the separator of this field."""
    return tuple(field.separator.join(tag).split(field.separator))


def _fold(tag: Tag) -> Tag:
    return tuple(map(fold_name, tag))


def _fold_levels(tags: Iterable[Tag], roots: Collection[Tag] = ()) -> set[str]:
    names = (tag[-1:] if tag[:-1] in roots else tag for tag in tags)
    return {fold_name(level) for tag in names for level in tag}
