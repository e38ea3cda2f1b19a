"""Laws of a sidecar's tags: nothing of the user's is hidden, nothing that was deleted returns."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from service.archive.tags import State, UserTags, find_rejected, merge
from service.archive.xmp import FIELDS, HIERARCHY, SUBJECT, TAGS_LIST, Field, Tag
from service.bundle.card import fold_name

NAMES = st.sampled_from(["cat", "Cat", "dog", "holiday", "trips", "AC/DC"])
FLAT = st.lists(NAMES.map(lambda name: (name,)), max_size=3, unique=True).map(tuple)
TREES = st.lists(st.lists(NAMES, min_size=1, max_size=2).map(tuple), max_size=3, unique=True)
FITTING = {TAGS_LIST: TREES.filter(lambda tags: "AC/DC" not in str(tags)), HIERARCHY: TREES}
STATES = st.builds(
    lambda tags_list, hierarchy, subject: State(
        {TAGS_LIST: tags_list, HIERARCHY: hierarchy, SUBJECT: subject}, (), (), ()
    ),
    *(st.none() | FITTING[field].map(tuple) for field in (TAGS_LIST, HIERARCHY)),
    st.none() | FLAT,
)
PHOTOS = st.builds(UserTags, TREES.map(tuple), FLAT)
LABELS = st.lists(NAMES, max_size=3, unique_by=fold_name)
ROOTS = st.sampled_from([(), ("ml-decoder",), ("a", "b")])
Run = tuple[list[str], Tag]
RUNS = st.tuples(LABELS, ROOTS)
NOTHING = UserTags()


def write(state: State, photo: UserTags, labels: Sequence[str], root: Tag) -> State:
    return merge(state, photo, [(*root, label) for label in labels], find_rejected(state))


def names_in(tags: Sequence[Tag] | None) -> set[str]:
    return {fold_name(level) for tag in tags or () for level in "/".join(tag).split("/")}


def see(state: State, photo: UserTags, *fields: Field) -> set[str]:
    """Returns the names that a program shows which reads the first of these fields with tags."""
    flat = photo.flat if SUBJECT in fields else ()
    seen = (state.tags[field] or (photo.trees if field is HIERARCHY else ()) for field in fields)
    return names_in(next(filter(None, seen), flat))


def drop_order(state: State) -> dict[str, set[Tag]]:
    return {field.name: set(tags) for field, tags in state.tags.items() if tags}


@given(STATES, PHOTOS, LABELS, ROOTS)
def test_no_program_sees_fewer_tags_than_before(
    state: State, photo: UserTags, labels: list[str], root: Tag
) -> None:
    after = write(state, photo, labels, root)
    for fields in (FIELDS, (HIERARCHY, SUBJECT), (SUBJECT,), (TAGS_LIST,)):
        assert see(state, photo, *fields) <= see(after, photo, *fields)
    for field, tags in state.tags.items():
        assert set(tags or ()) <= set(after.tags[field] or ())


@given(STATES, PHOTOS, RUNS, RUNS)
def test_a_later_run_replaces_the_tags_of_an_earlier_one(
    state: State, photo: UserTags, run: Run, other: Run
) -> None:
    labels, root = run
    once = write(state, photo, labels, root)
    assert write(once, photo, labels, root) == once
    twice = write(write(once, photo, *other), photo, labels, root)
    assert drop_order(twice) == drop_order(once)
    assert (twice.written, twice.rejected) == (once.written, ())
    assert drop_order(write(once, photo, (), root)) == drop_order(state)


@given(STATES, PHOTOS, RUNS, st.sampled_from(FIELDS), st.data())
def test_a_deleted_tag_does_not_come_back(
    state: State, photo: UserTags, run: Run, field: Field, data: st.DataObject
) -> None:
    labels, root = run
    once = write(state, photo, labels, root)
    if not once.written:
        return
    gone = data.draw(st.sampled_from(once.written))[-1]
    kept = tuple(tag for tag in once.tags[field] or () if tag[-1] != gone)
    deleted = replace(once, tags=once.tags | {field: kept})
    for other in (root, ("elsewhere",)):
        deleted = write(deleted, photo, labels, other)
        assert all(tag[-1] != gone for tags in deleted.tags.values() for tag in tags or ())
        assert gone in deleted.rejected
    nothing = replace(once, tags=dict.fromkeys(FIELDS))
    assert {tag[-1] for tag in once.written} <= set(find_rejected(nothing))


@given(STATES, PHOTOS, LABELS, ROOTS, st.sampled_from(FIELDS))
def test_a_program_that_drops_a_field_has_deleted_nothing(
    state: State, photo: UserTags, labels: list[str], root: Tag, field: Field
) -> None:
    once = write(state, photo, labels, root)
    again = write(replace(once, tags=once.tags | {field: None}), photo, labels, root)
    assert {*once.written} <= {*again.written}
    assert not again.rejected


def test_copies_follow_the_users_tags_and_their_deletion() -> None:
    plain = State({TAGS_LIST: None, HIERARCHY: None, SUBJECT: (("a",), ("b",))}, (), (), ())
    once = write(plain, NOTHING, ["cat"], ("r",))
    assert once.tags[TAGS_LIST] == (("a",), ("b",), ("r", "cat"))
    # In the field that was there: the copies go too.
    less = write(
        replace(once, tags=once.tags | {SUBJECT: (("b",), ("cat",))}), NOTHING, ["cat"], ("r",)
    )
    assert less.tags[TAGS_LIST] == (("b",), ("r", "cat"))
    # In a copy: it is not made again, and the field of the user stays.
    lost = replace(once, tags=once.tags | {TAGS_LIST: (("b",), ("r", "cat"))})
    for _ in range(2):
        lost = write(lost, NOTHING, ["cat"], ("r",))
        assert lost.tags[TAGS_LIST] == lost.tags[HIERARCHY] == (("b",), ("r", "cat"))
        assert lost.tags[SUBJECT] == (("a",), ("b",), ("cat",))
    more = replace(once, tags=once.tags | {SUBJECT: (("a",), ("b",), ("c",), ("cat",))})
    assert ("c",) in (write(more, NOTHING, ["cat"], ("r",)).tags[TAGS_LIST] or ())


def test_a_photo_that_got_a_copy_of_its_sidecar_has_no_more_tags_of_the_user() -> None:
    plain = State(dict.fromkeys(FIELDS), (), (), ())
    once = write(plain, NOTHING, ["cat", "dog"], ("r",))
    photo = UserTags((("r", "cat"), ("r", "dog")), (("r",), ("cat",), ("dog",)))
    assert write(once, photo, ["cat", "dog"], ("r",)) == once
    deleted = replace(once, tags=once.tags | {SUBJECT: (("dog",),)})
    for _ in range(2):
        deleted = write(deleted, photo, ["cat", "dog"], ("r",))
        assert deleted.tags[SUBJECT] == (("dog",),)
