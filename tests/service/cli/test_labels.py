"""`ml-decoder labels add`, `list` and `remove` with a bundle and a store."""

import json
from pathlib import Path

import pytest

from tests.service.cli.conftest import Run, assert_refused

ADD = ("labels", "add", "zoo", "--label", "yak")
NO_STORES = (
    r"sqlite://labels.db|sqlite:labels.db|sqlite:///|sqlite:///a.db?mode=ro|sqlite:///file:a.db|"
    r"file:labels.db|C:\labels.db|postgresql:x|host=db dbname=labels password=secret|user = app|"
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


def test_add_reads_labels_from_a_file_and_names_a_wrong_line(run_open: Run, tmp_path: Path) -> None:
    file = tmp_path / "TAGS.CSV"
    add = ("labels", "add", "zoo", "--file", file, "--json")
    file.write_text("name,prompt\nyak,\nyak,\n")
    assert_refused(run_open, f"{file}: Line 3: the label 'yak' is on line 2 too", *add)
    file.write_text("name,prompt\nyak,\nwild newt,\n")
    assert json.loads(run_open(*add)[1])["num_labels"] == 2


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
        assert run_open(*ADD, "--label-store", good)[0] == 0
    assert (tmp_path / "labels.db").is_file()


def test_add_requires_replace_for_another_set_of_the_name(run_open: Run) -> None:
    other = ("labels", "add", "zoo", "--label", "newt")
    assert run_open(*ADD)[0] == 0
    reason = "another label set is called zoo; --replace replaces it"
    assert_refused(run_open, reason, *other)
    assert run_open(*other, "--replace")[0] == 0
