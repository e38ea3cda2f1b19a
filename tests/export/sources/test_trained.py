from pathlib import Path

import pytest

from export import ExportError
from export.sources.trained import read_source
from models.checkpoints.checkpoint import write_checkpoint
from models.network import Network
from tests.export.tiny_network import LABELS
from tests.models.checkpoints import assert_refused, save
from tests.models.checkpoints.test_timm_layouts import make_head


def test_label_names_may_come_from_a_file(checkpoint: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    # As an editor on Windows writes it.
    names.write_bytes("\ufeffsea\r\n\r\n  meadow \r\nrose\r\n".encode())
    assert read_source(checkpoint, label_names=names).label_names == ("sea", "meadow", "rose")
    names.write_bytes(b"a\nb\n" + b"c" * 200)
    assert read_source(checkpoint, label_names=names).label_names == ("a", "b", "c" * 200)


@pytest.mark.parametrize(
    ("option", "content", "reason"),
    [
        ("label_names", b"a\nb\n", "2 label names for 3 logits"),
        ("label_names", b"a\nb\nb\n", "label names 2 and 3 are both 'b'"),
        ("label_names", b"\xff\xfe\n", "cannot be read"),
        ("label_names", "a\nb\u2028b\nc".encode(), r"name 'b\\u2028b': .*control characters"),
        ("label_names", b"a\nb\rb\nc", r"label name 'b\\rb': .*control characters"),
        ("label_names", b"a\nb\n" + b"c" * 201, "at most 200 characters"),
        ("label_thresholds", b"0.5\n" * 4, "4 label thresholds for 3 labels"),
        ("label_thresholds", b"0.5\n\n0.5\n", "threshold 2 must be a number from 0 to 1; it is ''"),
        ("label_thresholds", b"0.5\n1.5\n", "threshold 2 must be a number .* it is '1.5'"),
        ("label_thresholds", b"nan\n", "label threshold 1 must be"),
        ("label_thresholds", b"\xff", "cannot be read"),
    ],
)
def test_unfit_names_and_thresholds_are_refused(
    checkpoint: Path, tmp_path: Path, option: str, content: bytes, reason: str
) -> None:
    (tmp_path / "given.txt").write_bytes(content)
    with pytest.raises(ExportError, match=reason):
        read_source(checkpoint, **{option: tmp_path / "given.txt"})


def test_unfit_names_in_a_checkpoint_are_refused(network: Network, tmp_path: Path) -> None:
    path = tmp_path / "own.safetensors"
    for name in ("", " ", "two\nlines", "x" * 201):
        write_checkpoint(path, network, (*LABELS[:2], name), {})
        with pytest.raises(ExportError, match="label name") as refused:
            read_source(path)
        assert "\n" not in str(refused.value)
    write_checkpoint(path, network, LABELS, {})
    assert read_source(path).label_names == LABELS


def test_head_without_a_backbone_is_refused(tmp_path: Path) -> None:
    path = save(make_head().state_dict(), tmp_path)
    assert_refused(path, "has a head without a backbone", read_source)


def test_labels_beyond_the_thresholds_have_none(checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "thresholds.txt"
    for content, expected in (
        (b"0.45\r\n 1.0 \n\n", (0.45, 1.0, None)),
        (b"0\n0.5\n0.68", (0.0, 0.5, 0.68)),
    ):
        path.write_bytes(content)
        source = read_source(checkpoint, label_thresholds=path)
        assert tuple(label.threshold for label in source.labels) == expected
    assert [label.threshold for label in read_source(checkpoint).labels] == [None, None, None]
