"""`ml-decoder labels learn`, `export` and `import` with a bundle and a store."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.service.cli.conftest import Run, assert_refused
from tests.support.photos import make_photo


@pytest.fixture
def run(run_learning: Run) -> Run:
    return run_learning


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three photos of `our mug`, one of them in a subfolder, and one of `yak`."""
    folder = tmp_path / "photos"
    for seed, name in enumerate(("our mug/a.png", "our mug/b.png", "our mug/more/c.png", "yak/d")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(make_photo(seed))
    return folder


def learn(run: Run, folder: Path, *flags: str) -> dict[str, dict[str, Any]]:
    code, out, err = run("labels", "learn", "mine", folder, "--json", *flags)
    assert (code, err) == (0, "")
    return {record["label"]: record for record in map(json.loads, out.splitlines())}


def score(run: Run, photo: Path) -> dict[str, tuple[float, str]]:
    _, out, _ = run("predict", photo, "--label-set", "mine", "--top-k", 9, "--json")
    labels = json.loads(out)["labels"]
    return {label["label"]: (label["score"], label["source"]) for label in labels}


def test_subfolders_are_labels_whose_photos_add_up(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.cli.learn._EXAMPLES_PER_WRITE", 2)
    found = learn(run, folder)
    assert {label: each["examples"]["positive"] for label, each in found.items()} == {
        **{"our mug": 3, "yak": 1}
    }
    assert found["yak"]["separation"]["meaning"] == "unknown with one photo"
    assert {source for _, source in score(run, folder / "yak/d").values()} == {"examples"}
    (folder / "yak/e.png").write_bytes(make_photo(5))
    counts = learn(run, folder)["yak"]["examples"]
    assert (counts["positive"], counts["added"], counts["repeated"]) == (2, 1, 1)
    (folder / "yak/d").unlink()
    found = learn(run, folder, "--replace")
    for label, count in (("yak", 1), ("our mug", 3)):
        counts = found[label]["examples"]
        assert (counts["positive"], counts["added"]) == (count, count)
    out = run("labels", "learn", "mine", folder)[1]
    assert "yak: 1 photo, 0 new; unknown with one photo. A threshold needs" in out


def test_photos_that_cannot_be_used_are_named_and_left_out(run: Run, folder: Path) -> None:
    (folder / "yak/junk.jpg").write_bytes(b"junk")
    (folder / "loose.png").write_bytes(make_photo(7))
    (folder / "newt").mkdir()
    (folder / "newt/gone.png").symlink_to("nowhere")
    code, out, err = run("labels", "learn", "mine", folder, "--json")
    assert (code, len(out.splitlines())) == (1, 2)
    assert err.splitlines() == [
        f"{folder}/loose.png: it is in no subfolder: it has no label",
        f"{folder}/newt/gone.png: No such file or directory",
        f"{folder}/yak/junk.jpg: The file is damaged or is not an image",
    ]
    assert set(score(run, folder / "yak/d")) == {"our mug", "yak"}


def test_learn_refuses_arguments_before_it_reads_photos(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    def refuse(reason: str, name: str, place: Path) -> None:
        assert_refused(run, reason, "labels", "learn", name, place)

    refuse("none: No such file or directory", "mine", tmp_path / "none")
    refuse("more has no subfolder with photos", "mine", folder / "our mug" / "more")
    refuse("is read-only", "everyday", folder)
    refuse("The name of a label set should be", "../mine", folder)
    (folder / "yak").rename(folder / "y\u200bak")
    refuse("Text should not contain control characters", "mine", folder)


def test_exported_set_is_imported_with_what_it_has_learnt(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    learn(run, folder)
    expected, file = score(run, folder / "yak/d"), tmp_path / "mine.npz"
    assert run("labels", "export", "mine", file) == (0, "", "")
    assert_refused(run, "another label set is called mine", "labels", "import", file)
    reason = "examples cannot be added to mine: import the file as another set"
    assert_refused(run, reason, "labels", "add", "mine", "--file", file)
    (folder / "yak/e.png").write_bytes(make_photo(5))
    learn(run, folder)
    run("labels", "add", "mine", "--label", "newt")
    assert "3, 0 negative; " in run("labels", "show", "mine")[1]
    replaced = run("labels", "import", file, "--replace")
    assert (replaced[0], replaced[2]) == (0, "mine loses labels 'newt'; examples of 'yak'\n")
    run("labels", "remove", "mine")
    code, out, err = run("labels", "import", file, "--json")
    assert (code, json.loads(out)["num_labels"], err) == (0, 2, "")
    found = score(run, folder / "yak/d")
    assert found == {n: (pytest.approx(s, abs=1e-5), "examples") for n, (s, _) in expected.items()}
    assert_refused(run, "no such label set", "labels", "export", "none", file)
    assert_refused(run, "must end in .npz", "labels", "export", "mine", tmp_path / "mine")
