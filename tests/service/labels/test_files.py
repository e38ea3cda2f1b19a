"""Label set files: JSON and `.npz` become definitions or a one-line error; no pickles."""

import io
import json
import os
import pickle
import tracemalloc
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.bundle.card import Calibration
from service.bundle.writer import BundleDraft, write_bundle
from service.errors import BundleError, InvalidLabelSet, StartError
from service.labels.definition import Definition
from service.labels.files import (
    pack_label_set,
    parse_label_set,
    read_bundle_sets,
    read_label_set_folder,
)
from service.labels.sources.examples import Examples
from service.labels.sources.learnt import list_contents
from service.labels.words import Words
from tests.support.label_store import define, make_examples
from tests.support.tiny_bundle import EMBEDDING_WIDTH, open_draft, tiny_draft


def pack(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def make_npz(names: Any, embeddings: Any = None, **arrays: Any) -> bytes:
    """Without `embeddings`, those of each name are three ones."""
    rows = np.ones((len(names), 3)) if embeddings is None else embeddings
    return pack(names=np.array(names), embeddings=rows, **arrays)


GOOD = make_npz(["cat", "dog"], np.eye(2, 3, dtype=np.float32))


def test_json_and_npz_give_the_same_set() -> None:
    labels = [
        {"name": "cat", "embedding": [1, 0, 0], "threshold": 0.5},
        {"name": "dog", "embedding": [0, 1, 0]},
    ]
    text = json.dumps({"labels": labels}).encode()
    rows = np.eye(2, 3, dtype=np.float32)
    arrays = make_npz(["cat", "dog"], rows, thresholds=np.array([0.5, np.nan]))
    from_json = parse_label_set(b"\xef\xbb\xbf" + text, ".json", "pets")
    from_npz = parse_label_set(arrays, ".npz", "pets")
    assert from_json.digest == from_npz.digest
    assert from_npz.thresholds == (0.5, None)


def test_npz_may_have_several_descriptions_of_a_label() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    several, flat = (make_npz(["cat", "dog"], r) for r in (rows, rows.reshape(2, 6)))
    found = parse_label_set(several, ".npz", "pets")
    assert found.digest == parse_label_set(flat, ".npz", "pets").digest


@pytest.mark.parametrize(
    ("content", "ending", "reason"),
    [
        (b"", ".json", "not valid JSON"),
        (b"[" * 100_000, ".json", "not valid JSON"),
        (b"[]", ".json", "must be a JSON object"),
        (b'{"labels": []}', ".json", "labels"),
        (b'{"labels": "a"}', ".json", "labels: Input should be a valid list"),
        (b'{"labels": ["a", " "]}', ".json", "labels.1.name: Text should not be empty"),
        (b'{"labels": ["a"], "x": 1}', ".json", "x"),
        (
            b'{"name": "vets", "labels": ["a"]}',
            ".json",
            "must be 'pets', or left out; it is 'vets'",
        ),
        (b'{"name": [1], "labels": ["a"]}', ".json", "must be 'pets', or left out; it is no text"),
        (b'{"labels": ["a", "a"]}', ".json", "appears twice"),
        (b"", ".npz", "readable"),
        (b"PK\x03\x04junk", ".npz", "readable"),
        (GOOD[:-30], ".npz", "readable"),
        (pack(names=np.array(["a"])), ".npz", "arrays"),
        (make_npz([1]), ".npz", "names"),
        (make_npz(["a"], np.ones((2, 3))), ".npz", "one row"),
        (make_npz(["a", "a"]), ".npz", "twice"),
        (make_npz(["\0a"]), ".npz", "names"),
        (make_npz(["a"], thresholds=[2.0]), ".npz", "Threshold 1 of 1 must be from 0 to 1"),
        (make_npz(["a"], prompts=[1]), ".npz", "prompts"),
        (make_npz(["a"], calibration=[1.0]), ".npz", "calibration must be a scale and a shift"),
        (make_npz(["a"], calibration=[0.0, 0.0]), ".npz", "calibration: scale: Input should be"),
        (b'{"labels": ["a"], "calibration": {"scale": 0, "shift": 0}}', ".json", "scale"),
        (make_npz(["a"], prompts=["\1"]), ".npz", "prompts"),
        (b"x", ".xml", "must end in"),
        (b"", ".txt", "no labels"),
        (b" \n\n", ".txt", "no labels"),
        (b"a\n\nb\xe9\n", ".txt", "Line 3 is not UTF-8: save the file as UTF-8"),
        (b"\xef\xbb\xbfa\n\xe9", ".txt", "Line 2 is not UTF-8"),
        (b"a\r\n\r\nb\r\na\r\n", ".txt", "Line 4: the label 'a' is on line 1 too"),
        (b"a\nb\0", ".txt", "Line 2: name: Text should not contain control"),
        (b"a\nb\x0cc", ".txt", "Line 2: name: Text should not contain control"),
        (b"a\n" + b"b" * 201, ".txt", "Line 2: name: Text should have at most 200"),
        (b"", ".csv", "no labels"),
        (b"name,prompt\n", ".csv", "no labels"),
        (b"a,b\nc,d\n", ".csv", "Line 1 must name the columns"),
        (b"\nprompt\x07name\n", ".csv", "Line 2: name: Text should not contain control"),
        (b"name,treshold\na,1\n", ".csv", "LANGUAGE; it has 'name', 'treshold'"),
        (b"name,name\na,b\n", ".csv", "Line 1 must name the columns"),
        (b"name\na\nb,c\n", ".csv", "Line 3 has 2 values, for 1 column"),
        (b"name,threshold\na,\nb,2\n", ".csv", "Line 3: threshold: Input should be less"),
        (b"name;threshold\na;0,5\n", ".csv", "unable to parse string as a number; it is '0,5'"),
        (b"name,prompt\n,b\n", ".csv", "Line 2: name: Field required"),
        (b'name\n"a\nb"\n', ".csv", "Line 3: name: Text should not contain control"),
        (b'name\na\n"b', ".csv", "Line 3 is not valid CSV"),
        (b'name\n"a"b\n', ".csv", "Line 2 is not valid CSV"),
        (b"name\na\nb\na\n", ".csv", "Line 4: the label 'a' is on line 2 too"),
        (b'{"labels": [{"name": "a", "promt": "b"}]}', ".json", "mean 'prompt'"),
        (b"name,translation:german\na,b\n", ".csv", "language tag"),
        (b"name,parent\na,a\n", ".csv", "Line 2: parents: A label should not be its own"),
        (
            make_npz(
                ["a"], words=np.frombuffer(b'{"labels":[{"name":"b","aliases":["c"]}]}', np.uint8)
            ),
            ".npz",
            "names",
        ),
        (make_npz(["a"], words=np.zeros(1)), ".npz", "words must be bytes"),
    ],
)
def test_invalid_file_is_refused_with_its_reason(content: bytes, ending: str, reason: str) -> None:
    with pytest.raises(InvalidLabelSet, match=reason) as caught:
        parse_label_set(content, ending, "pets")
    assert "\n" not in caught.value.reason
    assert parse_label_set(GOOD, ".npz", "pets").names == ("cat", "dog")


@pytest.mark.parametrize(
    ("content", "ending"),
    [
        (b"cat\n\n # dog\nwooden_table, old", ".txt"),
        (b"\xef\xbb\xbfcat\r\n# dog \r\n\r\nwooden_table, old\r\n", ".txt"),
        (b'cat\n# dog\n\n"wooden_table, old"\n', ".csv"),
        (b'\xef\xbb\xbfName\r\ncat\r\n# dog\r\n\r\n"wooden_table, old"\r\n', ".csv"),
        (b"name;prompt\ncat\n# dog;\n;\nwooden_table, old;\n", ".csv"),
    ],
)
def test_text_and_csv_have_a_name_a_line(content: bytes, ending: str) -> None:
    found = parse_label_set(content, ending, "pets")
    assert found.names == ("cat", "# dog", "wooden_table, old")
    assert found.prompts == found.thresholds == (None, None, None)


def test_json_csv_and_npz_have_words() -> None:
    header = b"name,alias,parent,translation:de,translation:pt-br\n"
    text = header + b"cat,puss;kitty,pet;animal,Katze,gato\nyak\n"
    found = parse_label_set(text, ".csv", "pets")
    words = Words(("puss", "kitty"), ("pet", "animal"), {"de": "Katze", "pt-BR": "gato"})
    assert found.words == {"cat": words}
    label = {"name": "cat", **words._asdict()}
    content = json.dumps({"labels": [label, "yak"]}).encode()
    assert parse_label_set(content, ".json", "pets").words == found.words
    packed = pack_label_set(found, np.ones((2, 3), np.float32))
    assert parse_label_set(packed, ".npz", "pets").words == found.words


def test_csv_with_a_header_has_prompts_and_thresholds() -> None:
    content = b'Threshold, prompt ,name\n0.25,"a dog, asleep",dog\n,,cat\n1\n,,\n'
    with pytest.raises(InvalidLabelSet, match="Line 4: name: Field required"):
        parse_label_set(content, ".csv", "pets")
    found = parse_label_set(content.replace(b"1\n", b""), ".csv", "pets")
    assert found.names == ("dog", "cat")
    assert found.prompts == ("a dog, asleep", None)
    assert found.thresholds == (0.25, None)


@given(
    names=st.lists(st.text("abcé ", min_size=1).filter(str.strip), min_size=1, unique_by=str.strip),
    data=st.data(),
)
def test_packed_set_is_read_back_unchanged(names: list[str], data: st.DataObject) -> None:
    count = len(names)
    choose = st.lists(st.none() | st.floats(0, 1), min_size=count, max_size=count)
    prompts = st.lists(st.sampled_from([None, "a photo"]), min_size=count, max_size=count)
    definition = Definition(
        name="pets",
        names=tuple(name.strip() for name in names),
        prompts=tuple(data.draw(prompts)),
        thresholds=tuple(data.draw(choose)),
        given=tuple(range(count)),
        embeddings=np.arange(1, 3 * count + 1, dtype=np.float32).reshape(count, 3),
        embedding_space=data.draw(st.sampled_from([None, "space"])),
        calibration=data.draw(st.sampled_from([None, Calibration(scale=0.3, shift=-1.5)])),
    )

    packed = pack_label_set(definition)
    found = parse_label_set(packed, ".npz", "pets")

    assert found.digest == definition.digest
    assert found.embedding_space == definition.embedding_space
    assert pack_label_set(found) == packed


EXAMPLES = {
    name: {"examples": Examples.empty(8).add(make_examples(2, i))} for i, name in enumerate("ac")
}
LEARNT = define("pets", "a", "b", "c", lessons=EXAMPLES, encoder="e" * 64)


@pytest.mark.parametrize("width", [0, 3])
def test_file_has_the_examples_of_a_set_and_which_labels_have_a_text(width: int) -> None:
    embeddings = np.full((3, width), 0.1, np.float32)
    given = {"given": (1,), "embeddings": embeddings[:1]} if width else {}
    found = parse_label_set(pack_label_set(replace(LEARNT, **given), embeddings), ".npz", "pets")
    assert (found.given, found.encoder) == (given.get("given", ()), LEARNT.encoder)
    assert found.digest == replace(LEARNT, **given).digest
    assert list_contents(found.lessons) == list_contents(EXAMPLES)


@pytest.mark.parametrize(
    "change",
    [
        {"learnt": np.array(["a"])},
        {"learnt": np.array(["a", "a"])},
        {"learnt": np.array(["a", "other"])},
        {"lessons": np.zeros(9, np.uint8)},
        {"lesson_sizes": np.array([-1, 9])},
        {"lesson_sizes": np.array([2**62, 2**62])},
        {"lesson_sizes": np.array([0.5, 1])},
        {"encoder": np.array("e" * 65)},
        {"encoder": np.array(3)},
    ],
)
def test_examples_that_do_not_fit_are_refused(change: dict[str, Any]) -> None:
    packed = pack_label_set(LEARNT, np.zeros((3, 0), np.float32))
    with np.load(io.BytesIO(packed)) as arrays:
        damaged = pack(**{**arrays, **change})
    with pytest.raises(InvalidLabelSet, match=r"do not fit|damaged"):
        parse_label_set(damaged, ".npz", "pets")


class Intruder:
    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("raise AssertionError('code of a pickle ran')",))


def test_pickle_inside_an_npz_is_never_loaded() -> None:
    objects = np.empty(1, object)
    objects[0] = Intruder()
    with pytest.raises(AssertionError, match="ran"):
        pickle.loads(pickle.dumps(objects))
    for content in (make_npz(objects), make_npz(["a"], objects)):
        with pytest.raises(InvalidLabelSet, match="without pickle"):
            parse_label_set(content, ".npz", "pets")


def zip_names(
    header: str, data: bytes = b"", compression: int = 8, members: Sequence[str] = ("names",)
) -> bytes:
    """Returns a file whose names have this header and data."""
    length = len(header).to_bytes(2, "little")
    buffer = io.BytesIO(pack(embeddings=np.ones((1, 3))))
    with zipfile.ZipFile(buffer, "a", compression) as archive:
        for member in members:
            archive.writestr(member, b"\x93NUMPY\1\0" + length + header.encode() + data)
    return buffer.getvalue()


def claim_more(content: bytes) -> bytes:
    """Returns a file in whose directory the last member has 4 bytes more."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        size = archive.infolist()[-1].file_size
    before, _, after = content.rpartition(size.to_bytes(4, "little"))
    return before + (size + 4).to_bytes(4, "little") + after


def describe(kind: str, shape: str = "(1,)") -> str:
    return f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}\n"


ONE = (describe("'<U1'"), b"a\0\0\0")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (zip_names(describe("'<U0'", "(300000000,)")), "readable"),
        (zip_names(describe("'<U1'", "(300000000,)")), "readable"),
        (zip_names(describe("'<U1'", "(-1,)")), "readable"),
        (zip_names(describe("'<U99999999'"), bytes(4)), "readable"),
        (zip_names(describe("[('a', '<U1', (9, 9))]"), bytes(324)), "readable"),
        (zip_names(describe("'|O'"), bytes(8)), "readable"),
        (zip_names(describe("'<U1'", "(" * 5000)), "readable"),
        (zip_names(describe("'<U1'"), b"\0\0\x11\0"), "readable"),  # no code point
        (zip_names(*ONE, zipfile.ZIP_BZIP2), "readable"),
        (zip_names(*ONE, zipfile.ZIP_LZMA), "readable"),
        (zip_names(*ONE, members=("names", "names.npy")), "must have the arrays"),
        (zip_names(describe("'<U1'", "(9999999,)"), b"a\0\0\0" * 9_999_999), "at most 16777216"),
        (make_npz(["a"] * 100_001, np.ones((100_001, 0))), "at most 100000 labels"),
        (claim_more(zip_names(describe("'<U1'", "(2,)"), b"a\0\0\0")), "readable"),
    ],
)
def test_forged_array_is_refused_before_it_takes_memory(content: bytes, reason: str) -> None:
    tracemalloc.start()
    with pytest.raises(InvalidLabelSet, match=reason):
        parse_label_set(content, ".npz", "pets")
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()
    assert parse_label_set(zip_names(*ONE), ".npz", "pets").names == ("a",)


@pytest.mark.parametrize("ending", [".json", ".csv", ".txt", ".npz"])
def test_file_of_too_many_labels_is_refused(ending: str) -> None:
    lines = b"cat\ndog\n"
    content = {".json": b'{"labels": ["cat", "dog"]}', ".npz": GOOD}.get(ending, lines)
    with pytest.raises(InvalidLabelSet, match="at most 1 labels; this one has 2"):
        parse_label_set(content, ending, "pets", 1)
    assert parse_label_set(content, ending, "pets", 2).names == ("cat", "dog")


@pytest.mark.parametrize(
    ("put", "reason"),
    [
        (os.mkfifo, "Not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "Not a regular file"),
        (
            lambda path: (path.touch(), os.truncate(path, 1 << 40)),
            "at most 67108864 bytes, an .npz",
        ),
        (lambda path: path.write_text('{"labels": ["a"], "x\\ny": 1}'), r"x\\ny: This name"),
    ],
)
def test_odd_file_in_a_folder_is_refused_in_one_line(
    tmp_path: Path, put: Callable[[Path], object], reason: str
) -> None:
    put(tmp_path / "odd.json")
    with pytest.raises(StartError, match=reason) as caught:
        read_label_set_folder(tmp_path)
    assert "\n" not in str(caught.value)
    (tmp_path / "odd.json").unlink()
    (tmp_path / "pets.npz").write_bytes(GOOD)
    assert len(read_label_set_folder(tmp_path)) == 1


def test_folder_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text('{"labels": ["x"]}')
    (tmp_path / "a.npz").write_bytes(GOOD)
    (tmp_path / "notes.txt").write_text("not a set")
    (tmp_path / "notes.csv").write_text("not a set")
    assert [found.name for found in read_label_set_folder(tmp_path)] == ["a", "b"]


def test_folder_with_an_invalid_file_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="must be an existing folder"):
        read_label_set_folder(tmp_path / "none")
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(StartError, match=r"b\.json"):
        read_label_set_folder(tmp_path)
    (tmp_path / "b.json").write_text('{"labels": ["x"]}')
    (tmp_path / "b.npz").write_bytes(GOOD)
    with pytest.raises(StartError, match="two files of the set b"):
        read_label_set_folder(tmp_path)


def pack_ones(*, width: int = EMBEDDING_WIDTH, **arrays: Any) -> bytes:
    return make_npz(["cat"], np.ones((1, width), np.float16), **arrays)


def test_sets_of_a_bundle_are_read_by_name(tmp_path: Path) -> None:
    sets = {"zoo.npz": pack_ones(), "cars.json": b'{"labels": ["van"]}'}
    bundle = write_bundle(tmp_path / "tiny-open", replace(open_draft(), label_sets=sets))
    found = read_bundle_sets(bundle)
    assert [(each.name, each.names) for each in found] == [("cars", ("van",)), ("zoo", ("cat",))]


TEXT = b'{"labels": ["cat"]}'
OPEN, WORDLESS = open_draft(), open_draft(encodes_text=False)
CLOSED = tiny_draft()


@pytest.mark.parametrize(
    ("draft", "file", "content", "reason"),
    [
        (CLOSED, "zoo.json", TEXT, "a bundle with an open head"),
        (OPEN, "zoo.npz", pack_ones(embedding_space="0" * 64), "embedding_space is '0000"),
        (OPEN, "zoo.npz", pack_ones(width=9), f"needs {EMBEDDING_WIDTH} values"),
        (WORDLESS, "zoo.json", TEXT, "encodes no text"),
        (OPEN, "zoo.npz", GOOD[:-30], "must be a readable .npz"),
        (OPEN, "my zoo.json", TEXT, "'my zoo': .* 1 to 100 letters, digits"),
    ],
)
def test_bundle_with_an_unusable_set_is_refused_in_one_line(
    tmp_path: Path, draft: BundleDraft, file: str, content: bytes, reason: str
) -> None:
    bundle = write_bundle(tmp_path / draft.card.name, replace(draft, label_sets={file: content}))
    with pytest.raises(BundleError, match=f"label set {file}: .*{reason}") as caught:
        read_bundle_sets(bundle)
    assert "\n" not in str(caught.value)
