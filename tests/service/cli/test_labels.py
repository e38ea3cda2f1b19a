"""`ml-decoder labels add`, `list`, `show`, `threshold` and `remove` with a bundle and a store."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from service.bundle.reader import Bundle
from tests.e2e.server_process import ROOT
from tests.service.cli.conftest import Run, assert_refused
from tests.support.tiny_bundle import EMBEDDING_WIDTH

ADD = ("labels", "add", "zoo", "--label", "yak")
NO_STORES = (
    r"sqlite://labels.db|sqlite:labels.db|sqlite:///|sqlite:///a.db?mode=ro|sqlite:///file:a.db|"
    r"postgresql//app:secret@db/x|file:labels.db|C:\labels.db|postgresql:x|"
    "host=db dbname=labels password=secret|user = app|"
    "postgresql://app:p@secret@db/x|postgresql://app:p@db:secret@db/x|postgresql://db/x#secret|"
    "postgresql://app:p@s/secret@db/x|postgresql://app:p@s?secret@db/x|postgresql://app:secret@d%b"
)


def list_names(run: Run) -> list[str]:
    _, out, _ = run("labels", "list", "--json")
    return [json.loads(line)["name"] for line in out.splitlines()]


def test_added_set_is_listed_used_and_removed(run_open: Run, photo: Path) -> None:
    code, out, err = run_open(*ADD, "--label", "newt", "--json")
    assert (code, json.loads(out)["num_labels"], err) == (0, 2, "")
    assert list_names(run_open) == ["trained", "everyday", "zoo"]
    assert "everyday │ 1.0     │ bundle │ 3" in run_open("labels", "list")[1]
    _, out, _ = run_open("predict", photo, "--label-set", "zoo", "--top-k", 9, "--json")
    assert {label["label"] for label in json.loads(out)["labels"]} == {"yak", "newt"}
    assert run_open("labels", "remove", "zoo") == (0, "", "")
    assert list_names(run_open) == ["trained", "everyday"]


def test_export_replaces_a_link_and_keeps_the_mode_of_a_file(run_open: Run, tmp_path: Path) -> None:
    run_open(*ADD)
    file, target, folder = (tmp_path / name for name in ("zoo.npz", "target", "folder.npz"))
    target.write_text("mine")
    file.symlink_to(target)
    folder.mkdir()
    export = ("labels", "export", "zoo")
    assert_refused(run_open, "folder.npz was not written: Is a directory", *export, folder)
    for mode in (0o600, 0o640):
        assert run_open(*export, file) == (0, "", "")
        assert (file.is_symlink(), file.stat().st_mode & 0o777) == (False, mode)
        file.chmod(0o640)
    assert target.read_text() == "mine"


def test_add_reads_labels_from_a_file_and_names_a_wrong_line(run_open: Run, tmp_path: Path) -> None:
    file = tmp_path / "TAGS.CSV"
    add = ("labels", "add", "zoo", "--file", file, "--json")
    file.write_text("name,prompt\nyak,\nyak,\n")
    assert_refused(run_open, f"{file}: Line 3: the label 'yak' is on line 2 too", *add)
    file.write_text("name,prompt\nyak,\nwild newt,\n")
    limit = "--max-labels-per-set"
    assert_refused(run_open, f"{file}: A label set takes at most 1 labels", *add, limit, 1)
    assert json.loads(run_open(*add, limit, 2)[1])["num_labels"] == 2


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("add", "zoo"), "either --label or --file"),
        (("add", "zoo", "--file", "none.json"), "none.json"),
        (("add", "zoo", "--label", "a", "--label", "a"), "appears twice"),
        (("add", "../zoo", "--label", "a"), "name: The name of a label set should be 1 to 100"),
        (("add", "zoo", "--label", "a", "--label", ""), "labels.1.name: Text should not be empty"),
        (("add", "trained", "--label", "a"), "is read-only"),
        (("remove", "none"), "no such label set"),
        (("add", "zoo", "--label", "x" * 150), "The text encoder reads 128 tokens"),
    ],
)
def test_labels_writes_one_line_for_an_invalid_argument(
    run_open: Run, arguments: tuple[str, ...], reason: str
) -> None:
    assert_refused(run_open, reason, "labels", *arguments)


def test_error_names_the_store_that_cannot_be_opened(
    run_open: Run, tmp_path: Path, photo: Path
) -> None:
    loop = tmp_path / "labels.db"
    loop.symlink_to(loop)
    reason = "unable to open database file: let the service read the file and write into its folder"
    error = f"ml-decoder: label_store {loop}: {reason}\n"
    predict = ("predict", photo, "--label-set")
    for arguments in (("labels", "list"), ADD, (*predict, "zoo")):
        assert run_open(*arguments) == (2, "", error)
    assert run_open(*predict, "everyday")[0] == 0


def read_labels(run: Run, name: str) -> dict[str, dict[str, Any]]:
    code, out, err = run("labels", "show", name, "--json")
    assert (code, err) == (0, "")
    return {label.pop("name"): label for label in json.loads(out)["labels"]}


def test_add_adds_to_a_set_and_leaves_the_labels_that_are_there(
    run_open: Run, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("name,prompt,threshold\nyak,a big yak,0.4\nYak,,\n")
    run_open("labels", "add", "zoo", "--file", tmp_path / "a.csv")
    before = read_labels(run_open, "zoo")
    code, out, err = run_open("labels", "add", "zoo", "--label", "Yak", "--label", "newt")
    assert (code, err, out.splitlines()[-1]) == (0, "", "1 added, 1 was there")
    found = read_labels(run_open, "zoo")
    assert [*found] == ["yak", "Yak", "newt"]
    assert {name: found[name] for name in before} == before
    (tmp_path / "b.json").write_text('{"labels": ["eel", {"name": "newt"}, "Yak"]}')
    for added, repeated in ((1, 2), (0, 3)):
        out = run_open("labels", "add", "zoo", "--file", tmp_path / "b.json", "--json")[1]
        about = {"name": "zoo", "version": "3", "origin": "store", "num_labels": 4}
        assert json.loads(out) == {**about, "added": added, "repeated": repeated}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("yak,,0.5", "Label 'yak' of zoo has another threshold (0.4, not 0.5): leave it out"),
        ("yak,the yak,0.4", "another prompt (none, not 'the yak')"),
    ],
)
def test_add_adds_nothing_if_a_label_is_there_in_another_way(
    run_open: Run, tmp_path: Path, row: str, reason: str
) -> None:
    file = tmp_path / "a.csv"
    add = ("labels", "add", "zoo", "--file", file)
    file.write_text("name,prompt,threshold\nyak,,0.4\n")
    run_open(*add)
    file.write_text(f"name,prompt,threshold\nnewt,,\n{row}\n")
    assert_refused(run_open, reason, *add)
    assert [*read_labels(run_open, "zoo")] == ["yak"]
    assert run_open("labels", "add", "zoo", "--label", "yak")[1].endswith("0 added, 1 was there\n")
    assert "`ml-decoder labels threshold zoo 'yak' VALUE`" in run_open(*add)[2]
    assert run_open(*add, "--replace")[0] == 0
    assert [*read_labels(run_open, "zoo")] == ["newt", "yak"]


def test_add_refuses_what_the_set_cannot_take(
    run_open: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(name: str, **fields: object) -> tuple[str, ...]:
        file = tmp_path / "labels.json"
        vector = {"name": name, "embedding": [0.5] * EMBEDDING_WIDTH}
        file.write_text(json.dumps({"labels": [vector]} | fields))
        return ("--file", str(file))

    run_open(*ADD)
    run_open("labels", "add", "vectors", *write("a"))
    other_kind = "of another kind (texts, embeddings or photos alone): register the new ones as"
    assert_refused(run_open, f"zoo are {other_kind}", "labels", "add", "zoo", *write("b"))
    assert_refused(run_open, other_kind, "labels", "add", "vectors", "--label", "b")
    assert_refused(run_open, "'yak' of zoo has another embedding:", *ADD[:3], *write("yak"))
    calibrated = write("newt", labels=["newt"], calibration={"scale": 2.0, "shift": 0.0})
    assert_refused(run_open, "A calibration or examples cannot be added", *ADD[:3], *calibrated)
    assert_refused(run_open, "is read-only", "labels", "add", "everyday", "--label", "newt")
    monkeypatch.setenv("ML_DECODER_MAX_LABELS_PER_SET", "1")
    assert_refused(run_open, "takes at most 1 labels; this one has 2", *ADD[:3], "--label", "newt")
    monkeypatch.delenv("ML_DECODER_MAX_LABELS_PER_SET")
    assert run_open(*ADD[:3], "--label", "newt")[1].endswith("1 added, 0 were there\n")
    assert run_open("labels", "add", "vectors", *write("a"))[1].endswith("0 added, 1 was there\n")


def test_show_has_the_words_of_the_service_for_sets_of_all_origins(
    run_open: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sets").mkdir()
    labels = ["yak", {"name": "newt", "prompt": "a newt", "threshold": 0.25}]
    (tmp_path / "sets/farm.json").write_text(json.dumps({"labels": labels}))
    monkeypatch.setenv("ML_DECODER_LABEL_SETS", str(tmp_path / "sets"))
    assert read_labels(run_open, "farm")["newt"] == {
        **{"prompt": "a newt", "threshold": 0.25, "calibrated": True, "own_embedding": False}
    }
    out = run_open("labels", "show", "farm")[1]
    assert out.count("(default)") == 1
    assert "newt  │ 0.25          │ a newt │" in out
    assert len(read_labels(run_open, "everyday")) == 3
    assert read_labels(run_open, "trained")
    assert_refused(run_open, "did you mean 'farm'?", "labels", "show", "fam")


def test_add_takes_labels_and_words_of_the_bundle(
    run_open: Run, monkeypatch: pytest.MonkeyPatch, worded_bundle: Bundle, tmp_path: Path
) -> None:
    monkeypatch.setenv("ML_DECODER_BUNDLE", str(worded_bundle.path))
    add = ("labels", "add", "mine", "--label", "newt", "--label")
    assert_refused(run_open, "this language: 'xx'", *add, "cat", "--lang", "xx")
    assert_refused(run_open, "'Bank' means 'table', 'lamp'", *add, "Bank", "--lang", "de")
    for word, *flags in (("cat",), ("PUSS",), ("Katze", "--lang", "de"), ("chat",)):
        told = "" if word in ("cat", "chat") else f"{word}: cat\n"  # English text without --lang
        assert run_open(*add, word, *flags)[::2] == (0, told)
    assert [*read_labels(run_open, "mine")] == ["newt", "cat", "chat"]
    shown = "cat   │ also puss; in animal > pet; de Katze; fr chat │"
    assert shown in run_open("labels", "show", "mine")[1]
    assert "│ cat   │ Katze       │" in run_open("labels", "show", "mine", "--lang", "de-AT")[1]
    assert_refused(run_open, "Known languages: 'de', 'fr'", "labels", "show", "mine", "--lang=it")
    (tmp_path / "old.csv").write_text("name,prompt\ncat,an old cat\n")
    file = ("labels", "add", "mine", "--replace", "--file", tmp_path / "old.csv")
    assert run_open(*file)[2] == "mine loses labels 'newt', 'chat'; words of 'cat'\n"
    assert run_open(*add, "puss")[1].endswith("1 added, 1 was there\n")  # without words, as before
    assert "words" not in run_open("labels", "show", "mine")[1]


def test_threshold_changes_one_label_and_names_a_wrong_one(run_open: Run) -> None:
    run_open(*ADD, "--label", "red panda")
    change = ("labels", "threshold", "zoo")
    assert "red panda │ 0.3 " in run_open(*change, "red panda", 0.3)[1]
    assert "yak" not in run_open(*change, "red panda", 0.3)[1]
    for value in ("1.5", "nan", "a lot", ""):
        assert_refused(run_open, "threshold: Input should be", *change, "yak", value)
    assert_refused(run_open, "did you mean 'red panda'?", *change, "red pand", 0.5)
    assert_refused(run_open, "is read-only", "labels", "threshold", "everyday", "dog", 0.5)
    assert_refused(run_open, "no such label set", "labels", "threshold", "none", "dog", 0.5)
    labels = read_labels(run_open, "zoo")
    assert (labels["red panda"]["threshold"], labels["yak"]["calibrated"]) == (0.3, False)
    run_open(*change, "red panda", "default")
    assert not read_labels(run_open, "zoo")["red panda"]["calibrated"]


def answer_on_a_terminal(answer: str, *arguments: str) -> tuple[int, str]:
    """Runs a command on a terminal, with Ctrl+C for no answer; returns code and output."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "service.cli", *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=follower, stdout=follower, stderr=follower
    ) as run:
        os.close(follower)
        shown = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while part := os.read(leader, 1000):
                shown += part
                if shown.endswith(b"[y/N]: ") and not answer:
                    time.sleep(0.5)  # readline misses a signal just before it waits
                    run.send_signal(signal.SIGINT)
                elif shown.endswith(b"[y/N]: "):
                    os.write(leader, answer.encode())
    os.close(leader)
    return run.returncode, shown.decode()


def test_replace_names_what_is_lost_and_asks_on_a_terminal(run_open: Run) -> None:
    run_open(*ADD, "--label", "newt")
    run_open("labels", "threshold", "zoo", "newt", 0.3)
    other = ("labels", "add", "zoo", "--label", "newt", "--replace")
    loses = "zoo loses labels 'yak'; threshold of 'newt'"
    for answer in ("n\n", ""):
        code, shown = answer_on_a_terminal(answer, *other)
        assert (code, loses in shown, "ml-decoder: stopped" in shown) == (2, True, True)
        assert [*read_labels(run_open, "zoo")] == ["yak", "newt"]
    code, shown = answer_on_a_terminal("y\n", *other)
    assert (code, loses in shown) == (0, True)
    assert [*read_labels(run_open, "zoo")] == ["newt"]
    code, shown = answer_on_a_terminal("", *other, "--label", "eel")  # loses nothing
    assert (code, "loses" in shown) == (0, False)
    code, _, err = run_open(*other)
    assert (code, err) == (0, "zoo loses labels 'eel'\n")


@pytest.mark.parametrize("store", NO_STORES.split("|"))
def test_mistyped_label_store_is_refused_without_its_password(
    run_open: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: str
) -> None:
    monkeypatch.chdir(tmp_path)
    reason = "ml-decoder: label_store must be a path (with a colon, begin it with ./ or /), memory"
    code, out, err = run_open(*ADD, "--label-store", store)
    assert (code, out, err.startswith(reason), "secret" in err) == (2, "", True, False)
    for good in (":memory:", "MEMORY", "sqlite:///:memory:", "'sqlite:///labels.db'\r"):
        assert not [*tmp_path.iterdir()]
        code, _, err = run_open(*ADD, "--label-store", good)
        assert (code, "nothing is kept" in err) == (0, "db" not in good)
    assert (tmp_path / "labels.db").is_file()
