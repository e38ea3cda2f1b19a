"""Tables of tags, and the labels and signs that are chosen from tags."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.archive import PhotoTags
from service.archive.choice import TagChoice, TagSigns, choose_labels
from service.archive.tables import read_tag_table
from service.bundle.card import fold_name
from service.errors import StartError

P, A, R, U = 1, 0, -1, -2
TAGS = {
    "1": PhotoTags((("animals", "Cat"), ("People", "Anna")), ("dog",), ("sea", "AC-DC")),
    "2": PhotoTags((("animals", "cat"), ("dog",)), ("DOG",)),
    "3": PhotoTags((("Pets", "cat"),), (), ("dog",)),
    "4": PhotoTags((("People", "Anna"),)),
    "5": PhotoTags((), ("cat", "cow"), ("dog",)),
    "6": PhotoTags((), (), ("sea",)),
    "7": PhotoTags((("AC/DC",), ("no\u200bname",))),
}


def choose(*known: str, **choice: Any) -> tuple[TagSigns, dict[str, list[int]]]:
    names = {fold_name(name): name for name in known}
    signs = choose_labels(TAGS, TagChoice(**choice), lambda n: names.get(fold_name(n), n))
    assert signs.signs.shape == (len(signs.photos), len(signs.labels))
    return signs, dict(zip(signs.photos, signs.signs.tolist(), strict=True))


def test_a_sign_is_what_the_user_said_of_a_label() -> None:
    signs, rows = choose("Dog", least=1, exclude=["people/*"])
    assert signs.labels == ("cat", "AC/DC", "Dog")
    assert signs.signs.dtype == np.int8
    assert rows == {"1": [P, A, R], "2": [P, A, P], "3": [P, A, A], "5": [R, U, U], "7": [A, P, A]}
    reason = "Text should not contain control characters or other invisible ones"
    assert signs.left_out == {"excluded": ["Anna"], reason: ["no\u200bname"]}
    _, rows = choose("Dog", least=1, exclude=["people/*"], trust_kept=True)
    assert rows["1"] == [R, P, P, P]  # Dog, cat, AC/DC, sea
    assert (rows["3"], rows["6"]) == ([P, P, A, A], [U, U, U, P])


def test_words_of_a_label_are_one_label_in_the_spelling_of_the_set() -> None:
    tags = {
        "1": PhotoTags((("Tier", "Katze"), ("CAT",)), ("Hund",)),
        "2": PhotoTags((("Katze",), ("Hund",))),
        "3": PhotoTags((), (), ("Rock", "Maus"), {"Rock": "skirt", "Maus": "mouse"}),
    }
    words = {"katze": "Cat", "cat": "Cat", "hund": "dog", "rock": "stone"}
    choice = TagChoice(least=1, trust_kept=True, exclude=["maus"])
    chosen = choose_labels(tags, choice, lambda word: words.get(word.casefold(), word))
    assert chosen.labels == ("Cat", "dog", "skirt")
    assert chosen.signs.tolist() == [[P, R, A], [P, P, A], [U, U, P]]
    assert chosen.resolved == {"Katze": "Cat", "Hund": "dog"}
    assert chosen.left_out == {"excluded": ["mouse"]}


@pytest.mark.parametrize(
    ("choice", "labels", "left_out"),
    [
        ({"least": 2}, ["cat", "Anna"], ["AC/DC", "dog", "no\u200bname"]),
        ({"least": 2, "level": "path"}, ["People/Anna", "animals/Cat"], ["Pets/cat"]),
        ({"least": 1, "level": 1}, ["People", "animals", "AC/DC", "Pets", "dog"], []),
        ({"least": 1, "level": "9", "only": ["C?T", "no*"]}, ["cat"], ["AC/DC", "Anna"]),
        ({"least": 1, "only": ["animals/*"], "exclude": ["*nimals*"]}, [], ["Cat", "dog"]),
    ],
)
def test_level_patterns_and_least_choose_labels(
    choice: Any, labels: list[str], left_out: list[str]
) -> None:
    signs, rows = choose(**choice)
    assert list(signs.labels) == labels
    names = [tag for tags in signs.left_out.values() for tag in tags]
    assert {*left_out} <= {*names}
    # A tag that is not chosen says that the photo has been looked at.
    assert ("4" in rows) == bool(labels)
    for level in ("first", "0", -1):
        with pytest.raises(StartError, match="level must be last, path or a number from 1; it is"):
            TagChoice(level=level)


NAMES = st.sampled_from(["cat", "Cat", "a_b", "a b", "dog"])
PHOTOS = st.builds(
    PhotoTags,
    st.lists(NAMES.map(lambda n: (n,))).map(tuple),
    *[st.lists(NAMES).map(tuple)] * 2,
    st.just({}),
)


@given(st.dictionaries(st.sampled_from("abcdef"), PHOTOS), st.integers(1, 3), st.booleans())
def test_signs_follow_from_each_photo_alone(
    tags: dict[str, PhotoTags], least: int, trusted: bool
) -> None:
    photos, labels, signs, *_ = choose_labels(tags, TagChoice(least=least, trust_kept=trusted))
    assert len({*map(fold_name, labels)}) == len(labels)
    counts = (signs == P).sum(axis=0)
    assert all(counts >= least)
    assert [*counts] == sorted(counts, reverse=True)
    for photo, row in zip(photos, signs, strict=True):
        users, rejected, kept = (
            {*map(fold_name, n)} for n in ([t[0] for t in tags[photo].users], *tags[photo][1:3])
        )
        for label, sign in zip(map(fold_name, labels), row, strict=True):
            shows = label in users or (trusted and label in kept)
            assert sign == (P if shows else R if label in rejected else A if users else U)
    assert all((signs != U).any(axis=1))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "photos/images").mkdir(parents=True)
    for name in ("a.jpg", "b, c.jpg", "images/d.jpg"):
        (tmp_path / "photos" / name).touch()
    return tmp_path / "photos"


def read(folder: Path, content: str | bytes, encoding: str = "utf-8") -> Any:
    file = folder.parent / "table"
    file.write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
    return read_tag_table(file, folder)


def test_tables_of_any_form_are_read(folder: Path) -> None:
    cat = PhotoTags((("animals", "cat"), ("dog",)))
    for text in (
        'path,tags\na.jpg,"animals/cat, dog,"\nb.jpg,x\n',
        "Path;Rating;Tags\r\n./a.jpg;5;animals|cat,dog\r\n\r\nb.jpg;;\r\n",
        "tag\tpath\nanimals/ cat\tx/../a.jpg\ndog\ta.jpg\ncow\tb.jpg",
        f"path,tag,tags\n{folder}/a.jpg,animals/cat,dog\nb.jpg",
    ):
        assert read(folder, text, "utf-8-sig") == ({"a.jpg": cat}, ["b.jpg"])
    images = {name: {"labels": ["AC/DC"], "split": None} for name in ("a.jpg", "d.jpg", "e.jpg")}
    tags = PhotoTags((("AC/DC",),))
    table = read(folder, json.dumps({"label_names": [], "images": images}))
    assert table == ({"a.jpg": tags, "images/d.jpg": tags}, ["e.jpg"])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("a.jpg,cat", "Line 1 must name the columns, path and tags or tag; it has 'a.jpg', 'cat'"),
        ("path,tags\na.jpg,cat,dog", "Line 2 has 3 values, for 2 columns: write tags with commas"),
        ("path,tags\n\n../a.jpg,cat", "Line 3: '../a.jpg' is no photo below"),
        ("tag,path\ncat", "Line 2: '' is no photo below"),
        ("path,tags\n/etc/hostname,cat", "Line 2: '/etc/hostname' is no photo below"),
        ('path,tags\na.jpg,"cat', "Line 2 is not valid CSV"),
        ("path,tags\na.jpg,é".encode("latin-1"), "Line 2 is not UTF-8: save the file as UTF-8"),
        ("path,tags\ne.jpg,cat", "must name photos by their paths relative to"),
        ('{"images":\n{', "Invalid JSON: EOF while parsing an object at line 2 column 1"),
        ('{"images": {"a.jpg": ["cat"]}}', "images.a.jpg: Input should be"),
        ('{"images": {"../a.jpg": {"labels": ["cat"]}}}', "images: '../a.jpg' is no photo below"),
        ('{"a":' * 10**5, "table: "),
    ],
)
def test_another_file_is_refused_with_the_next_step(
    folder: Path, content: str | bytes, reason: str
) -> None:
    with pytest.raises(StartError, match=f"table:? .*{re.escape(reason.removeprefix('table: '))}"):
        read(folder, content)
    assert read(folder, "path,tag\na.jpg,cat")[0] == {"a.jpg": PhotoTags((("cat",),))}
