"""`ml-decoder labels` with a bundle and a store."""

import asyncio
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from service.bundle.reader import Bundle
from service.cli import calibrate as calibrating
from service.cli.labels import add_set, define_set
from service.pipeline.pipeline import Pipeline
from tests.service.cli.conftest import Run, assert_refused
from tests.support.odd_files import make_odd_files
from tests.support.photos import make_photo


@pytest.fixture
def run(run: Run, monkeypatch: pytest.MonkeyPatch, open_bundle: Bundle, tmp_path: Path) -> Run:
    monkeypatch.setenv("ML_DECODER_BUNDLE", str(open_bundle.path))
    monkeypatch.setenv("ML_DECODER_LABEL_STORE", str(tmp_path / "labels.db"))
    return run


def list_names(run: Run) -> list[str]:
    _, out, _ = run("labels", "list", "--json")
    return [json.loads(line)["name"] for line in out.splitlines()]


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "a.png"
    path.write_bytes(make_photo())
    return path


def test_added_set_is_listed_used_and_removed(run: Run, photo: Path) -> None:
    code, out, err = run("labels", "add", "zoo", "--label", "yak", "--label", "newt", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["num_labels"] == 2
    assert list_names(run) == ["trained", "everyday", "zoo"]
    _, out, _ = run("predict", photo, "--label-set", "zoo", "--top-k", 9, "--json")
    assert {label["label"] for label in json.loads(out)["labels"]} == {"yak", "newt"}
    assert run("labels", "remove", "zoo")[0] == 0
    assert list_names(run) == ["trained", "everyday"]


def test_text_that_the_encoder_does_not_read_to_its_end_is_refused(
    run: Run, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "x" * 150
    reason = "The text encoder reads 128 tokens"
    assert_refused(run, reason, "labels", "add", "zoo", "--label", long)
    assert_refused(run, reason, "predict", photo, "--candidate-labels", long)
    (photo.parent / "zoo.json").write_text(json.dumps({"labels": [long]}))
    monkeypatch.setenv("ML_DECODER_LABEL_SETS", str(photo.parent))
    assert_refused(run, "label set zoo: ", "labels", "list")


def test_predict_takes_candidate_labels(run: Run, photo: Path) -> None:
    _, out, _ = run("predict", photo, "--candidate-labels", "yak", "--top-k", 9, "--json")
    assert [label["label"] for label in json.loads(out)["labels"]] == ["yak"]


def test_add_reads_labels_from_a_file(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "anything.json"
    file.write_text('{"labels": ["yak"]}')
    assert run("labels", "add", "zoo", "--file", file)[0] == 0
    assert "zoo" in list_names(run)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tags.txt", "yak\n\nwild newt\n"),
        ("TAGS.CSV", "name,prompt,threshold\nyak,,\nwild newt,,\n"),
        ("tags.json", '\ufeff{"labels": ["yak", "wild newt"]}'),
    ],
)
def test_add_reads_names_from_a_text_or_csv(
    run: Run, tmp_path: Path, photo: Path, file: str, content: str
) -> None:
    (tmp_path / file).write_text(content)
    assert run("labels", "add", "zoo", "--file", tmp_path / file)[0] == 0
    _, out, _ = run("predict", photo, "--label-set", "zoo", "--top-k", 9, "--json")
    assert {label["label"] for label in json.loads(out)["labels"]} == {"yak", "wild newt"}


@pytest.mark.parametrize("file", ["tags.txt", "tags.csv"])
def test_add_names_the_line_of_a_wrong_label(run: Run, tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text("yak\n\nyak\n")
    reason = f"{tmp_path / file}: Line 3: the label 'yak' is on line 1 too"
    assert_refused(run, reason, "labels", "add", "zoo", "--file", tmp_path / file)
    (tmp_path / file).write_text("yak\n")
    assert run("labels", "add", "zoo", "--file", tmp_path / file)[0] == 0


def test_add_reads_the_json_that_a_service_returns(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "zoo.json"
    label = {"name": "yak", "prompt": None, "threshold": 0.3, "calibrated": False}
    record = {"name": "zoo", "version": "7", "origin": "store", "read_only": False, "num_labels": 1}
    file.write_text(json.dumps(record | {"labels": [label | {"own_embedding": True}]}))
    reason = "embedding of its own, which answers omit"
    assert_refused(run, reason, "labels", "add", "zoo", "--file", file)
    file.write_text(json.dumps(record | {"labels": [label | {"own_embedding": False}]}))
    assert run("labels", "add", "zoo", "--file", file)[0] == 0
    assert run("labels", "add", "zoo", "--label", "yak")[0] == 0, "it is the same set"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("add", "zoo"), "either --label or --file"),
        (("add", "zoo", "--file", "none.json"), "none.json"),
        (("add", "zoo", "--label", "a", "--label", "a"), "appears twice"),
        (("add", "../zoo", "--label", "a"), "name: The name of a label set should be 1 to 100"),
        (("add", "zoo", "--label", "a", "--label", ""), "labels.1.name: Text should not be empty"),
        (("add", "trained", "--label", "a"), "is read-only"),
        (("add", "everyday", "--label", "a"), "is read-only"),
        (("remove", "none"), "no such label set"),
        (("calibrate", "none", "--photos", "nowhere"), "No such file"),
    ],
)
def test_labels_writes_one_line_for_an_invalid_argument(
    run: Run, arguments: tuple[str, ...], reason: str
) -> None:
    assert_refused(run, reason, "labels", *arguments)
    assert list_names(run) == ["trained", "everyday"]


def test_labels_fails_if_the_store_is_damaged(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "labels.db"
    place.write_bytes(b"junk" * 1000)
    record = f"ml-decoder: label_store {place}: the file is not a SQLite database\n"
    for arguments in (("list",), ("add", "zoo", "--label", "yak"), ("remove", "zoo")):
        assert run("labels", *arguments) == (2, "", record)
    place.unlink()
    assert list_names(run) == ["trained", "everyday"]


def test_error_names_the_store_that_cannot_be_opened(run: Run, tmp_path: Path, photo: Path) -> None:
    place = tmp_path / "loop.db"
    place.symlink_to(place)
    reason = "unable to open database file: let the service read the file and write into its folder"
    record = f"ml-decoder: label_store {place}: {reason}\n"
    store = ("--label-store", place)
    for arguments in (("list",), ("add", "zoo", "--label", "yak"), ("remove", "zoo")):
        assert run("labels", *arguments, *store) == (2, "", record)
    asked = ("predict", photo, "--label-set")
    assert run(*asked, "zoo", *store) == (2, "", record)
    assert run(*asked, "everyday", *store)[0] == 0


def write_listing(folder: Path, labels: Sequence[str], images: dict[str, Any]) -> None:
    listing = {"name": "zoo", "label_names": labels, "images": images}
    (folder / "labels.json").write_text(json.dumps(listing))


def write_photos(folder: Path, *labels: str, count: int = 6) -> None:
    """Writes photos, each with all of these labels."""
    (folder / "images").mkdir(parents=True)
    for seed in range(count):
        (folder / "images" / f"{seed}.png").write_bytes(make_photo(seed))
    write_listing(folder, labels, {f"{seed}.png": {"labels": labels} for seed in range(count)})


def test_calibrate_changes_nothing_if_there_are_too_few_photos(run: Run, tmp_path: Path) -> None:
    write_photos(tmp_path, "yak", count=1)
    _, before, _ = run("labels", "add", "zoo", "--label", "yak", "--json")
    reason = "no label of the set zoo has 5 photos"
    assert_refused(run, reason, "labels", "calibrate", "zoo", "--photos", tmp_path)
    assert before in run("labels", "list", "--json")[1]


def break_photos(folder: Path, kind: str, count: int) -> list[str]:
    """Adds photos that cannot be used, with the labels of the first; returns their names."""
    listing = json.loads((folder / "labels.json").read_text())
    images = listing["images"]
    names = [f"{kind}{i}.jpg" for i in range(count)]
    for name in names:
        path = folder / "images" / name
        if kind == "junk":
            path.write_bytes(b"junk")
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "link":
            path.symlink_to(path)
        images[name] = images["0.png"]
    write_listing(folder, listing["label_names"], images)
    return names


@pytest.mark.parametrize("kind", ["junk", "pipe", "link", "missing"])
def test_calibrate_leaves_out_photos_that_cannot_be_used(
    run: Run, tmp_path: Path, kind: str
) -> None:
    write_photos(tmp_path / "photos", "yak")
    run("labels", "add", "zoo", "--label", "yak")
    calibrate = ("labels", "calibrate", "zoo", "--photos", tmp_path / "photos")
    expected = json.loads(run(*calibrate, "--json")[1])
    assert expected["left_out"] == 0

    names = break_photos(tmp_path / "photos", kind, 2)
    code, out, err = run(*calibrate, "--json")
    assert (code, json.loads(out)) == (1, expected | {"left_out": 2})
    assert [line.partition(": ")[0] for line in err.splitlines()] == [
        str(tmp_path / "photos" / "images" / name) for name in names
    ]
    code, out, _ = run(*calibrate)
    assert (code, out.splitlines()[-1]) == (1, "2 photos left out")
    assert "zoo" in run("labels", "list", "--json")[1]


def test_calibrate_reads_odd_files_as_usual_ones(run: Run, tmp_path: Path) -> None:
    run("labels", "add", "zoo", "--label", "yak")
    found = []
    for form in range(2):
        folder = tmp_path / str(form)
        (folder / "images").mkdir(parents=True)
        images = {}
        for number, files in enumerate(make_odd_files().values()):
            (folder / "images" / f"{number}.jpg").write_bytes(files[form])
            images[f"{number}.jpg"] = {"labels": ["yak"] * (number % 2)}
        write_listing(folder, ["yak"], images)
        code, out, err = run("labels", "calibrate", "zoo", "--photos", folder, "--json")
        assert (code, err) == (0, "")
        found.append(json.loads(out))
    odd, usual = found
    assert odd == usual
    assert odd["left_out"] == 0


def test_calibrate_fails_if_no_photo_can_be_used(run: Run, tmp_path: Path) -> None:
    write_photos(tmp_path, "yak")
    for path in (tmp_path / "images").iterdir():
        path.write_bytes(b"junk")
    run("labels", "add", "zoo", "--label", "yak")
    calibrate = ("labels", "calibrate", "zoo", "--photos", tmp_path)
    reason = (
        f"none of the photos can be used: 6 left out, such as {tmp_path}/images/0.png: The file"
    )
    assert_refused(run, reason, *calibrate)
    for seed in range(4):
        (tmp_path / "images" / f"{seed}.png").write_bytes(make_photo(seed))
    assert_refused(run, "has 5 photos in ", *calibrate)
    (tmp_path / "images" / "4.png").write_bytes(make_photo(4))
    assert run(*calibrate)[0] == 1


def test_calibrate_refuses_a_read_only_set_before_scoring(run: Run, tmp_path: Path) -> None:
    write_listing(tmp_path, ["yak"], {"absent.png": {"split": "val", "labels": []}})
    calibrate = ("labels", "calibrate", "everyday", "--photos", tmp_path)
    assert "is read-only" in run(*calibrate)[2]
    assert run(*calibrate, "--split", "vall")[2].endswith("has no photo of the split vall\n")
    assert list_names(run) == ["trained", "everyday"]


def test_calibrate_refuses_a_photo_with_an_unknown_label(run: Run, tmp_path: Path) -> None:
    write_listing(tmp_path, ["yak"], {"absent.png": {"labels": ["Yak"]}})
    run("labels", "add", "zoo", "--label", "yak")
    reason = "label_names does not contain the label Yak"
    assert_refused(run, reason, "labels", "calibrate", "zoo", "--photos", tmp_path)


def test_add_requires_replace_for_another_set_of_the_name(run: Run) -> None:
    assert run("labels", "add", "zoo", "--label", "yak")[0] == 0
    reason = "another label set is called zoo; --replace replaces it"
    assert_refused(run, reason, "labels", "add", "zoo", "--label", "newt")
    assert run("labels", "add", "zoo", "--label", "newt", "--replace")[0] == 0


def test_calibrate_leaves_a_set_that_was_changed_meanwhile(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_photos(tmp_path / "photos", "yak")
    calibrate = ("labels", "calibrate", "zoo", "--photos", tmp_path / "photos")
    run("labels", "add", "zoo", "--label", "yak")
    score = calibrating._score

    async def score_beside_another(pipeline: Pipeline, *arguments: Any) -> Any:
        scores = await score(pipeline, *arguments)
        newer = define_set("zoo", ["yak", "newt"], None)
        await asyncio.to_thread(add_set, pipeline.settings, newer, replace=True)
        return scores

    with monkeypatch.context() as patch:
        patch.setattr(calibrating, "_score", score_beside_another)
        reason = "zoo was changed while its photos were scored; calibrate it again"
        assert_refused(run, reason, *calibrate)
    assert '"zoo", "version": "2"' in run("labels", "list", "--json")[1]
    assert run(*calibrate)[0] == 0


@pytest.mark.parametrize(
    ("listing", "reason"),
    [
        ("{", "labels.json is not JSON"),
        ("{}", "labels.json: label_names: Field required"),
        ('{"label_names": ["a", ""], "images": {}}', "labels.json: label_names.1: Text should not"),
    ],
)
def test_calibrate_names_the_error_in_labels_json(
    run: Run, tmp_path: Path, listing: str, reason: str
) -> None:
    write_photos(tmp_path, "yak")
    good = (tmp_path / "labels.json").read_text()
    run("labels", "add", "zoo", "--label", "yak")
    calibrate = ("labels", "calibrate", "zoo", "--photos", tmp_path)
    (tmp_path / "labels.json").write_text(listing)
    assert_refused(run, reason, *calibrate)
    (tmp_path / "labels.json").write_text(good)
    assert run(*calibrate)[0] == 0


def test_calibrate_normalises_the_names_of_labels(run: Run, tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", " cafe\u0301", "yak")
    run("labels", "add", "zoo", "--label", "caf\u00e9", "--label", "yak")
    calibrate = ("labels", "calibrate", "zoo", "--photos", tmp_path / "photos", "--json")
    code, out, err = run(*calibrate)
    assert (code, err) == (0, "")
    assert set(json.loads(out)["thresholds"]) == {"caf\u00e9", "yak"}


def test_calibrate_sets_thresholds_that_separate_the_photos(run: Run, tmp_path: Path) -> None:
    write_photos(tmp_path, count=20)
    run("labels", "add", "zoo", "--label", "yak", "--label", "newt")
    files = sorted((tmp_path / "images").iterdir())
    _, out, _ = run("predict", *files, "--label-set", "zoo", "--top-k", 9, "--json")
    scores = {}
    for line in out.splitlines():
        record = json.loads(line)
        scores[Path(record["photo"]).name] = {la["label"]: la["score"] for la in record["labels"]}
    best = sorted(scores, key=lambda name: scores[name]["yak"], reverse=True)[:8]
    images = {name: {"split": "val", "labels": ["yak"] * (name in best)} for name in scores}
    write_listing(tmp_path, ["yak", "newt"], images)
    code, out, err = run("labels", "calibrate", "zoo", "--photos", tmp_path, "--json")
    assert (code, err) == (0, "")
    thresholds = json.loads(out)["thresholds"]
    assert set(thresholds) == {"yak"}, "newt has no photo, so it keeps what it had"
    others = [row["yak"] for name, row in scores.items() if name not in best]
    assert max(others) < thresholds["yak"] < min(scores[name]["yak"] for name in best)
    _, out, _ = run("predict", *files, "--label-set", "zoo", "--include", "yak", "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert {Path(r["photo"]).name for r in found if r["labels"]} == set(best)
    assert all(label["calibrated"] for record in found for label in record["labels"])


def predict_zoo(run: Run, files: Sequence[Path]) -> dict[str, float]:
    """Returns the score of `yak` on each photo."""
    _, out, _ = run(
        "predict", *files, "--label-set", "zoo", "--include", "yak", "--top-k", 1, "--json"
    )
    records = [json.loads(line) for line in out.splitlines()]
    return {Path(record["photo"]).name: record["labels"][0]["score"] for record in records}


def show_by_score(folder: Path, scores: dict[str, float]) -> set[str]:
    """Lists `yak` on half of the 40 photos with the best scores, and on one in ten of the others.

    Returns these photos.
    """
    ranked = sorted(scores, key=lambda name: scores[name], reverse=True)
    shown = set(ranked[:40:2]) | set(ranked[40::10])
    write_listing(folder, ["yak"], {name: {"labels": ["yak"] * (name in shown)} for name in ranked})
    return shown


def test_calibrate_makes_scores_probabilities(run: Run, tmp_path: Path) -> None:
    write_photos(tmp_path, count=80)
    run("labels", "add", "zoo", "--label", "yak")
    files = sorted((tmp_path / "images").iterdir())
    before = predict_zoo(run, files)
    shown = show_by_score(tmp_path, before)

    code, out, err = run("labels", "calibrate", "zoo", "--photos", tmp_path, "--json")

    assert (code, err) == (0, "")
    found = json.loads(out)["calibration"]
    assert found["error_after"] < found["error_before"]
    after = predict_zoo(run, files)
    assert sum(after.values()) == pytest.approx(len(shown), rel=0.1)
    for name, score in before.items():
        logit = math.log(score / (1 - score))
        expected = 1 / (1 + math.exp(-(found["scale"] * logit + found["shift"])))
        assert after[name] == pytest.approx(expected, abs=1e-4)
    # Again, with the scores of now: nothing to improve, so the set keeps what it has.
    again = json.loads(run("labels", "calibrate", "zoo", "--photos", tmp_path, "--json")[1])
    assert again["calibration"] is None
    assert predict_zoo(run, files) == after


def test_calibrate_converts_thresholds_of_labels_without_photos(run: Run, tmp_path: Path) -> None:
    write_photos(tmp_path, count=80)
    (tmp_path / "zoo.csv").write_text("name,threshold\nyak,\ngnu,0.7\ncat,\n")
    run("labels", "add", "zoo", "--file", tmp_path / "zoo.csv")
    files = sorted((tmp_path / "images").iterdir())
    show_by_score(tmp_path, predict_zoo(run, files))
    found = json.loads(run("labels", "calibrate", "zoo", "--photos", tmp_path, "--json")[1])

    predict = ("predict", files[0], "--label-set", "zoo", "--top-k", 3, "--json")
    labels = {label["label"]: label for label in json.loads(run(*predict)[1])["labels"]}

    fit = found["calibration"]
    kept = 1 / (1 + math.exp(-(fit["scale"] * math.log(0.7 / 0.3) + fit["shift"])))
    assert labels["gnu"]["threshold"] == pytest.approx(kept, abs=1e-4)
    assert [labels[name]["calibrated"] for name in ("yak", "gnu", "cat")] == [True, True, False]
    assert list(found["thresholds"]) == ["yak"]


def test_calibrate_takes_a_wanted_precision_and_names_labels_that_miss_it(
    run: Run, tmp_path: Path
) -> None:
    write_photos(tmp_path, count=40)
    run("labels", "add", "zoo", "--label", "yak")
    files = sorted((tmp_path / "images").iterdir())
    scores = predict_zoo(run, files)
    ranked = sorted(scores, key=lambda name: scores[name], reverse=True)
    write_listing(tmp_path, ["yak"], {n: {"labels": ["yak"] * (n in ranked[:20])} for n in ranked})
    calibrate = ("labels", "calibrate", "zoo", "--photos", tmp_path, "--precision-target")
    found = json.loads(run(*calibrate, 0.8, "--json")[1])
    assert (list(found["thresholds"]), found["not_reached"]) == (["yak"], [])
    found = json.loads(run(*calibrate, 0.99, "--json")[1])
    assert (found["thresholds"], found["not_reached"]) == ({}, ["yak"])
    assert "not reached" in run(*calibrate, 0.99)[1]
    code, _, err = run(*calibrate, 1.5)
    assert code == 2
    assert "--precision-target" in err
    assert run(*calibrate, 0.8)[0] == 0
