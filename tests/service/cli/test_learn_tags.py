"""`ml-decoder labels learn --from-tags` and `--tags`: a whole archive at once."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from service.labels.words import pack_words
from tests.service.cli.conftest import Run, assert_refused
from tests.support.photos import make_photo
from tests.support.tiny_bundle import WORDS, open_draft, write_learning_bundle

PACKET = """<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF
 xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description rdf:about=""
 xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:subject><rdf:Bag>{}</rdf:Bag></dc:subject>
</rdf:Description></rdf:RDF></x:xmpmeta>"""
TAGS = [["cat"] * (i % 3 == 0) + ["beach"] * (i % 2 == 0) + ["rare"] * (i == 1) for i in range(18)]


@pytest.fixture
def run(run_learning: Run) -> Run:
    return run_learning


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Eighteen photos with sidecars, and a table of the same tags."""
    folder = tmp_path / "archive"
    folder.mkdir()
    rows = ["path,tags"]
    for i, tags in enumerate(TAGS):
        (folder / f"{i}.png").write_bytes(make_photo(i))
        rows.append(f'{i}.png,"{",".join(tags)}"')
        if tags:
            items = "".join(f"<rdf:li>{tag}</rdf:li>" for tag in tags)
            (folder / f"{i}.png.xmp").write_text(PACKET.format(items))
    (tmp_path / "tags.csv").write_text("\n".join(rows))
    return folder


def list_labels(run: Run) -> dict[str, dict[str, object]]:
    out = run("labels", "show", "mine", "--json")[1]
    return {label["name"]: label for label in json.loads(out)["labels"]}


@pytest.mark.parametrize("source", [["--from-tags"], ["--tags", "tags.csv"]])
def test_tags_teach_labels_at_once_and_again(
    run: Run, archive: Path, monkeypatch: pytest.MonkeyPatch, source: list[str]
) -> None:
    monkeypatch.chdir(archive.parent)
    command = ("labels", "learn", "mine", archive, *source, "--all")
    code, out, err = run(*command, "--json", "--dry-run", "--report", archive / "r.html")
    assert (code, err) == (0, "left out: 1 tags, fewer than 5 photos: 'rare'\n")
    found = {row["label"]: row for row in map(json.loads, out.splitlines())}
    assert {name: row["positive"] for name, row in found.items()} == {"beach": 9, "cat": 6}
    assert found["cat"]["photos"] == sum(map(bool, TAGS))
    assert "<bdi>cat</bdi></h2>" in (archive / "r.html").read_text()
    code, _, err = run("labels", "show", "mine")
    assert (code, "mine" in err) == (2, True), "a dry run writes nothing"
    assert run(*command)[0] == 0
    fit = list_labels(run)["cat"]["fit"]
    assert isinstance(fit, dict)
    assert (fit["positive"], fit["this_model"]) == (6, True)
    answer = json.loads(
        run("predict", archive / "0.png", "--label-set", "mine", "--json", "--top-k", 1)[1]
    )
    assert answer["labels"][0]["source"] == "fit"
    run("labels", "threshold", "mine", "cat", 0.9)
    _, out, err = run(*command, "--only", "c*")
    assert "replaced: what 1 labels had learnt, and their thresholds: 'cat'" in err
    assert list_labels(run)["cat"]["threshold"] != 0.9
    assert list_labels(run)["beach"]["fit"]


def test_tags_are_labels_of_the_set_or_bundle_in_the_users_language(
    run: Run, archive: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    draft = replace(open_draft(), words=pack_words(WORDS).encode())
    monkeypatch.setenv("ML_DECODER_BUNDLE", str(write_learning_bundle(tmp_path, draft).path))
    table = tmp_path / "tags.csv"
    learn = ("labels", "learn", "mine", archive, "--tags", table, "--all")
    german = {"cat": "Tier/Katze", "beach": "Bank", "rare": "puss"}
    rows = [",".join(map(german.__getitem__, tags)) for tags in TAGS]
    table.write_text("path,tags\n" + "".join(f'{i}.png,"{row}"\n' for i, row in enumerate(rows)))
    assert_refused(run, "this language: 'xx'", *learn, "--lang", "xx")
    assert_refused(run, "need --from-tags", "labels", "learn", "mine", archive, "--lang", "de")
    assert "Katze" in run(*learn, "--dry-run")[1]
    assert run(*learn, "--lang", "de-AT")[::2] == (0, "Katze: cat\npuss: cat\n")
    labels = list_labels(run)
    assert labels.keys() == {"Bank", "cat"}  # it means two labels
    assert labels["cat"]["parents"] == ["pet", "animal"]
    assert "parents" not in labels["Bank"]
    # The setting is a language too; a label that the set has comes before the bundle's.
    assert run("labels", "add", "mine", "--label", "Katze")[0] == 0
    monkeypatch.setenv("ML_DECODER_LANG", "de")
    assert run(*learn)[2].startswith("puss: cat\nleft out: 1 tags, fewer than 5 photos: 'cat'\n")


def test_photo_that_cannot_be_used_is_named_and_too_few_photos_are_refused(
    run: Run, archive: Path
) -> None:
    (archive / "0.png").write_bytes(b"junk")
    (archive / "2.png.xmp").write_text("<broken")
    code, out, err = run("labels", "learn", "mine", archive, "--from-tags", "--all", "--json")
    assert (code, len(out.splitlines())) == (1, 2)
    assert f"{archive}/0.png: The file is damaged or is not an image" in err
    assert f"{archive}/2.png: its tags cannot be read: it is not XML" in err
    for flags, reason in (
        (("--from-tags", "--least", 99), "lower --least"),
        (("--from-tags", "--only", "dog"), "0 tags are on 5 photos"),
        (("--from-tags", "--level", "0"), "level must be"),
        (("--from-tags", "--replace"), "exclude each other"),
        (("--all",), "need --from-tags"),
        (("--only", "c"), "need --from-tags"),
        (("--from-tags", "--report", archive / "0.png"), "name an .html file"),
    ):
        assert_refused(run, reason, "labels", "learn", "mine", archive, *flags)
    assert_refused(run, "read-only", "labels", "learn", "trained", archive, "--from-tags")
