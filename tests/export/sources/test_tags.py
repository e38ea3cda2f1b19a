"""Tag files as published taggers have them, and files that only seem to be."""

import json
from pathlib import Path

import pytest
import timm
from huggingface_hub.errors import EntryNotFoundError
from safetensors.torch import save_file

from export import ExportError
from export.sources.tags import find_tags, read_tag_file
from export.sources.trained import Source, UnusableCheckpointError, read_source
from service.bundle.card import Label

NAMES = ("general", "1girl", "ann_(series)", "^_^")
TABLE = "tag_id,name,category,count\n1,general,9,5\n2,1girl,0,4\n3,ann_(series),4,3\n4,^_^,0,2\n"
CATEGORIES = ["rating", "general", "character", "general"]
PIXAI = {
    "tag_map": {name: i for i, name in enumerate(NAMES)},
    "tag_split": {"gen_tag_count": 3, "character_tag_count": 1},
}


def write(folder: Path, **files: object) -> Path:
    """Writes files, a name's `__` as the dot of its ending; values but texts as JSON."""
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def list_columns(labels: tuple[Label, ...]) -> list[tuple[str | None, float | None]]:
    assert tuple(label.name for label in labels) == NAMES
    return [(label.category, label.threshold) for label in labels]


@pytest.mark.parametrize(
    ("file", "content", "categories"),
    [
        ("selected_tags__csv", TABLE, CATEGORIES),
        ("selected_tags__csv", "\ufeffname\r\n" + "\r\n".join(NAMES), [None] * 4),
        ("config__json", {"architecture": "resnet18", "tags": NAMES}, [None] * 4),
        ("class__json", dict(enumerate(NAMES)), [None] * 4),
        ("tags__json", {name: i for i, name in enumerate(NAMES)}, [None] * 4),
        ("tagger_tags__json", NAMES, [None] * 4),
        ("tags_v0.9_13k__json", PIXAI, ["general"] * 3 + ["character"]),
    ],
)
def test_tag_file_is_read_beside_a_checkpoint_and_by_name(
    tmp_path: Path, file: str, content: object, categories: list[str | None]
) -> None:
    name = file.replace("__", ".")
    found = find_tags(write(tmp_path, **{file: content}), named=False)
    assert found is not None
    assert found[0] == name
    assert read_tag_file(tmp_path / name) == found[1]
    assert list_columns(found[1]) == [(category, None) for category in categories]
    named = find_tags(tmp_path, named=True)
    assert named == (found if "selected" in name or "13k" in name else None)


def test_tag_file_with_categories_comes_first_and_other_files_are_no_tag_files(
    tmp_path: Path,
) -> None:
    write(tmp_path, config__json={"tags": ["pytorch"]}, names__csv="a\nb\n", names__txt="a,b\nname")
    assert find_tags(tmp_path, named=False) is None
    assert read_tag_file(tmp_path / "names.csv") is None
    assert read_tag_file(tmp_path / "names.txt") is None
    write(tmp_path, tags__json=["x"], selected_tags__csv=TABLE)
    found = find_tags(tmp_path, named=False)
    assert found is not None
    assert found[0] == "selected_tags.csv"


def test_threshold_of_a_tag_comes_before_that_of_its_category_and_names_are_replaced(
    tmp_path: Path,
) -> None:
    rows = TABLE.replace("count", "best_threshold").replace(",5\n", ",0.25\n").splitlines()
    rows[2:] = [row.rpartition(",")[0] + "," for row in rows[2:]]
    limits = "category,name,alpha,threshold\n0,general,1,0.37\n9,rating,1,0.38\n7,other,1,0.1\n"
    write(tmp_path, selected_tags__csv="\n".join(rows), thresholds__csv=limits)
    write(tmp_path, categories__json=[{"category": 4, "name": "species"}])
    labels = read_tag_file(tmp_path / "selected_tags.csv")
    assert labels is not None
    assert list_columns(labels) == [
        *(("rating", 0.25), ("general", 0.37), ("species", None), ("general", 0.37)),
    ]
    write(tmp_path, categories__json={"4": "person"})
    labels = read_tag_file(tmp_path / "selected_tags.csv")
    assert labels is not None
    assert labels[2].category == "person"


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"a__csv": "tag,category\nx,0\n"}, "a.csv has no column 'name'"),
        ({"a__csv": "1,cat,0\n2,dog,0\n"}, "a.csv has no column 'name'"),
        ({"a__csv": "name,category\nx,\n"}, "a.csv: line 2: category: .* valid integer"),
        ({"a__csv": "name,category\nx\n"}, "a.csv: line 2: category: .* valid integer"),
        ({"a__csv": "name,category\nx,8\n"}, "line 2: category 8 has no name in categories.json"),
        ({"a__csv": "name,category\nx,y,0\n"}, "line 2 has more cells than line 1"),
        ({"a__csv": "name,category\nx,0\ny,0\nx,4\n"}, "line 4 has the name of a.csv: line 2, 'x'"),
        ({"a__csv": "name,category\n,0\n"}, "line 2: name: .* at least 1 character"),
        ({"a__csv": f"name,category\n{'x' * 201},0\n"}, "line 2: name: .* at most 200"),
        ({"a__csv": f"name,x\n{'x' * 200_000},0\n"}, "line 1: field larger than"),
        ({"a__csv": "name,best_threshold\nx,nan\n"}, "line 2: threshold: "),
        ({"a__csv": "name,best_threshold\nx,1.5\n"}, "line 2: threshold: .* less than"),
        ({"a__csv": "name,best_threshold\nx,often\n"}, "line 2: threshold: .* valid number"),
        ({"a__csv": "name,x\ny,z\n", "thresholds__csv": "a,b\n"}, "thresholds.csv has no column"),
        ({"a__csv": "name,x\ny,z\n", "thresholds__csv": "category,threshold\n0,nan"},
         "thresholds.csv: line 2: "),
        ({"a__csv": "name,x\ny,z\n", "thresholds__csv": "category,threshold\n0,0.1\n0,0.2"},
         "thresholds.csv: line 3: category 0 has another threshold already"),
        ({"a__csv": "name,x\ny,z\n", "categories__json": [1]}, "categories.json: .* dictionary"),
        ({"a__csv": "name,x\ny,z\n", "categories__json": [{"category": []}]}, "categories.json: "),
        ({"a__csv": "name,x\ny,z\n", "categories__json": {"0": ["x"]}}, "categories.json: 0: "),
        ({"a__json": "{"}, "a.json is not JSON"),
        ({"a__json": "[" * 100_000}, "a.json is not JSON"),
        ({"a__json": 5}, "a.json must have a list of names, or number them"),
        ({"a__json": ["x", 1]}, "must have a list of names"),
        ({"a__json": {"x": 0, "y": 0}}, "must have a list of names"),
        ({"a__json": {"x": 0, "y": 2}}, "must have a list of names"),
        ({"a__json": {"x": 0, "y": "z"}}, "must have a list of names"),
        ({"a__json": {"0": "x", "2": "y"}}, "must have a list of names"),
        ({"a__json": {"x": float("nan")}}, "must have a list of names"),
        ({"a__json": ["x", ""]}, "a.json: tag 1: name: "),
        ({"a__json": {**PIXAI, "tag_split": {"gen_tag_count": 3}}}, "must add up to 4 tags"),
        ({"a__json": {**PIXAI, "tag_split": {"gen_tag_count": -1, "character_tag_count": 5}}},
         "must add up to 4 tags"),
    ],
)  # fmt: skip
def test_damaged_tag_file_is_refused_in_one_line(
    tmp_path: Path, files: dict[str, object], reason: str
) -> None:
    write(tmp_path, **files)
    path = tmp_path / next(iter(files)).replace("__", ".")
    with pytest.raises(ExportError, match=reason) as refused:
        read_tag_file(path)
    assert "\n" not in str(refused.value)


def test_tag_file_of_other_bytes_or_too_many_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tags.json"
    path.write_bytes(b'["\xff"]')
    with pytest.raises(ExportError, match=r"tags.json cannot be read, or is not UTF-8"):
        read_tag_file(path)
    path.write_text("[]")
    monkeypatch.setattr("export.sources.tags._MAX_BYTES", 1)
    with pytest.raises(ExportError, match=r"tags.json must have at most 1 bytes"):
        read_tag_file(path)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of timm's with four classes; its folder is that of a repository of timm's."""
    path = tmp_path_factory.mktemp("timm") / "model.safetensors"
    save_file(timm.create_model("test_efficientnet", num_classes=4).state_dict(), path)
    return path


def read(weights: Path, folder: Path, **files: object) -> Source:
    (folder / weights.name).hardlink_to(weights)
    config = {"architecture": "test_efficientnet", **files.pop("config", {})}  # type: ignore[dict-item]
    return read_source(write(folder, config__json=config, **files))


def test_folder_of_a_tagger_has_labels_with_categories(weights: Path, tmp_path: Path) -> None:
    config = {"tags": ["other"]}
    source = read(weights, tmp_path, config=config, selected_tags__csv=TABLE)
    assert list_columns(source.labels) == [(category, None) for category in CATEGORIES]
    by_category = (("general", 0.35), ("character", 0.85))
    given = tmp_path / "thresholds.txt"
    given.write_text("0.1\n0.2\n")
    source = read_source(tmp_path, label_thresholds=given, category_threshold=by_category)
    assert [label.threshold for label in source.labels] == [0.1, 0.2, 0.85, 0.35]
    with pytest.raises(UnusableCheckpointError, match="x: the categories of the labels are rating"):
        read_source(tmp_path, category_threshold=[("x", 0.5)])
    (tmp_path / "names.txt").write_text("a\nb\nc\nd")
    source = read_source(tmp_path, label_names=tmp_path / "names.txt")
    assert source.label_names == ("a", "b", "c", "d")


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "names no labels: give --label-names"),
        ({"tags__json": ["a", "b"]}, "tags.json: 2 label names for 4 logits"),
        ({"tags__json": ["a", "b", "c", "b"]}, "tags.json: label names 2 and 4 are both 'b'"),
        ({"tags__json": ["a", "b", "c", "\u200b"]}, "tags.json: label name .* control characters"),
        ({"config": {"label_names": ["a", "b", "c", "d"]}, "selected_tags__csv": TABLE},
         "and selected_tags.csv have other labels: give the right ones by --label-names"),
    ],
)  # fmt: skip
def test_tag_file_that_contradicts_the_checkpoint_is_refused(
    weights: Path, tmp_path: Path, files: dict[str, object], reason: str
) -> None:
    with pytest.raises(UnusableCheckpointError, match=reason):
        read(weights, tmp_path, **files)


def test_names_in_the_checkpoint_come_before_a_list_without_categories(
    weights: Path, tmp_path: Path
) -> None:
    config = {"label_names": list(NAMES)}
    source = read(weights, tmp_path, config=config, tags__json=["a", "b"])
    assert source.label_names == NAMES
    (tmp_path / "selected_tags.csv").write_text(TABLE)
    assert list_columns(read_source(tmp_path).labels)[2] == ("character", None)


def test_tag_files_of_a_repository_on_the_hub_are_read(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(_: str, name: str) -> str:
        if not (tmp_path / name).is_file():
            raise EntryNotFoundError(f"404 for {name}")
        return str(tmp_path / name)

    monkeypatch.setattr("models.checkpoints.files.hf_hub_download", download)
    read(weights, tmp_path, selected_tags__csv=TABLE, categories__json={"9": "safety"})
    source = read_source(Path("hf-hub:someone/tagger"))
    assert list_columns(source.labels)[0] == ("safety", None)
