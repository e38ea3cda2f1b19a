"""Tag files as published taggers have them, and files that only seem to be."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
from safetensors.torch import save_file

from export import ExportError
from export.sources.tags import read_tag_file
from export.sources.trained import Source, read_source
from models.checkpoints.description import Hints
from service.bundle.card import Label

NAMES = ("general", "1girl", "ann_(series)", "^_^")
TABLE = "tag_id,name,category,count\n1,general,9,5\n2,1girl,0,4\n3,ann_(series),4,3\n4,^_^,0,2\n"
CATEGORIES = ["rating", "general", "character", "general"]
PIXAI = {
    "tag_map": {name: i for i, name in enumerate(NAMES)},
    "tag_split": {"gen_tag_count": 3, "character_tag_count": 1},
}
HINTS = Hints(channels="rgb", pad="none")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of timm's with four classes."""
    path = tmp_path_factory.mktemp("timm") / "model.safetensors"
    save_file(timm.create_model("test_efficientnet", num_classes=4).state_dict(), path)
    return path


@pytest.fixture
def tagger(weights: Path, tmp_path: Path) -> Path:
    """A folder as a repository of timm's has it."""
    (tmp_path / weights.name).hardlink_to(weights)
    return write(tmp_path, {"config.json": {"architecture": "test_efficientnet"}})


def write(folder: Path, files: dict[str, Any]) -> Path:
    """Writes files; contents but texts as JSON."""
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_text(text, errors="surrogateescape")
    return folder


def read(folder: Path, **options: Any) -> Source:
    return read_source(folder, HINTS, **options)


def list_columns(labels: tuple[Label, ...]) -> list[tuple[str | None, float | None]]:
    assert tuple(label.name for label in labels) == NAMES
    return [(label.category, label.threshold) for label in labels]


@pytest.mark.parametrize(
    ("file", "content", "categories"),
    [
        ("selected_tags.csv", TABLE, CATEGORIES),
        ("selected_tags.csv", "\ufeffname\r\n" + "\r\n".join(NAMES), [None] * 4),
        ("config.json", {"architecture": "test_efficientnet", "tags": NAMES}, [None] * 4),
        ("class.json", dict(enumerate(NAMES)), [None] * 4),
        ("tags.json", PIXAI["tag_map"], [None] * 4),
        ("tagger_tags.json", NAMES, [None] * 4),
        ("tags_v0.9_13k.json", PIXAI, ["general"] * 3 + ["character"]),
    ],
)
def test_tag_file_is_read_beside_a_checkpoint_and_by_name(
    tagger: Path, file: str, content: object, categories: list[str | None]
) -> None:
    write(tagger, {"names.csv": "a\nb\n", file: content})
    labels = read(tagger).labels
    assert list_columns(labels) == [(category, None) for category in categories]
    assert read(tagger, label_names=tagger / file).labels == labels
    write(tagger, {"names.csv": "a\nb\nc\nd\n"})
    assert read(tagger, label_names=tagger / "names.csv").label_names == ("a", "b", "c", "d")


def test_threshold_of_a_tag_comes_before_that_of_its_category(tagger: Path) -> None:
    table = TABLE.replace(",count", ",best_threshold").replace(",5\n", ",0.25\n")
    table = table.replace(",4\n", ",\n").replace(",3\n", ",\n").replace(",2\n", ",\n")
    limits = "category,name,alpha,threshold\n0,general,1,0.37\n9,rating,1,0.38\n7,other,1,0.1\n"
    write(tagger, {"selected_tags.csv": table, "thresholds.csv": limits})
    assert list_columns(read(tagger).labels) == list(
        zip(CATEGORIES, (0.25, 0.37, None, 0.37), strict=True)
    )
    given = write(tagger, {"limits.txt": "0.1\n0.2\n"}) / "limits.txt"
    by_category = ("general=0.35", "character=0.85")
    source = read(tagger, label_thresholds=given, category_threshold=by_category)
    assert [label.threshold for label in source.labels] == [0.1, 0.2, 0.85, 0.35]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("tag,category\nx,0\n", "a.csv has no column 'name'"),
        ("name,category\nx,8\n", "a.csv: line 2: category '8' is not 0, 1, 3, 4, 5, 9"),
        ("name,category\nx,y,0\n", "line 2 has more cells than line 1"),
        (f"name,x\n{'x' * 200_000},0\n", "line 1: field larger than"),
        ("name,x\n" * 50_000, "a.csv must have at most 250000 bytes"),
        ("name,x\n\udcff,y", "a.csv cannot be read, or is not UTF-8"),
        ("name,best_threshold\nx,nan\n", "line 2: best_threshold must be a number from 0 to 1"),
        ({"thresholds.csv": "category,threshold\n0,often"}, "thresholds.csv: line 2: threshold"),
        ({"thresholds.csv": "category,threshold\n0,0.1\n0,0.2"},
         "thresholds.csv: line 3: category 0 has another threshold already"),
        ({"a.json": "[" * 100_000}, "a.json is not JSON"),
        ({"a.json": 5}, "a.json must have a list of names, or number them"),
        ({"a.json": ["x", 1]}, "must have a list of names"),
        ({"a.json": {"x": 0, "y": 0}}, "must have a list of names"),
        ({"a.json": {"0": "x", "2": "y"}}, "must have a list of names"),
        ({"a.json": {**PIXAI, "tag_split": {"gen_tag_count": 3}}}, "must have a list of names"),
        ({"a.json": {**PIXAI, "tag_split": {"gen_tag_count": -1, "character_tag_count": 5}}},
         "must add up to 4 tags"),
    ],
)  # fmt: skip
def test_damaged_tag_file_is_refused_in_one_line(
    tmp_path: Path, content: str | dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export.sources.tags._MAX_BYTES", 250_000)
    files = {"a.csv": content if isinstance(content, str) else "name,x\ny,z\n"}
    write(tmp_path, files | (content if isinstance(content, dict) else {}))
    path = tmp_path / ("a.json" if "a.json" in content else "a.csv")
    with pytest.raises(ExportError, match=reason) as refused:
        read_tag_file(path, path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("files", "thresholds", "reason"),
    [
        ({}, (), "names no labels: give --label-names"),
        ({"tags.json": ["a", "b"]}, (), "tags.json: 2 label names for 4 logits"),
        ({"config.json": {"architecture": "test_efficientnet", "tags": NAMES[::-1]},
          "selected_tags.csv": TABLE}, (),
         "and selected_tags.csv have other labels: give the right ones by --label-names"),
        ({"selected_tags.csv": TABLE}, ("x=1",), "the categories of the labels are rating, gen"),
        ({"selected_tags.csv": TABLE}, ("general",), "NAME=P must be a number from 0 to 1"),
    ],
)  # fmt: skip
def test_unfit_labels_and_thresholds_of_a_tagger_are_refused(
    tagger: Path, files: dict[str, Any], thresholds: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(ExportError, match=reason):
        read(write(tagger, files), category_threshold=thresholds)


def test_names_in_the_checkpoint_come_before_a_list_without_categories(tagger: Path) -> None:
    config = {"architecture": "test_efficientnet", "label_names": NAMES}
    write(tagger, {"config.json": config, "tags.json": ["a", "b"]})
    assert read(tagger).label_names == NAMES


def test_tag_files_of_a_repository_on_the_hub_are_read(
    tagger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(_: str, name: str) -> Path | None:
        return tagger / name if (tagger / name).is_file() else None

    monkeypatch.setattr("models.checkpoints.hub._download", download)
    limits = "category,threshold\n9,0.38\n"
    write(tagger, {"selected_tags.csv": TABLE, "thresholds.csv": limits})
    assert list_columns(read(Path("hf-hub:someone/tagger")).labels)[0] == ("rating", 0.38)
