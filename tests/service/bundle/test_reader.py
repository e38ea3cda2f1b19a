"""A bundle is read back as it was written, or it is refused with one line."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.bundle import reader
from service.bundle.card import Label
from service.bundle.manifest import Manifest
from service.bundle.reader import Bundle, load_bundle
from service.errors import BundleError
from tests.support.tiny_bundle import (
    TINY_LABELS,
    Graphs,
    copy_bundle,
    tiny_card,
    tiny_encoder,
    tiny_graphs,
    write_tiny_bundle,
)


def test_bundle_is_read_back_as_it_was_written(tiny_bundle: Bundle) -> None:
    loaded = load_bundle(tiny_bundle.path)
    assert loaded == tiny_bundle
    assert loaded.card == tiny_card()
    assert loaded.labels == TINY_LABELS
    assert loaded.precisions() == ("fp32", "int8")
    graphs = tiny_graphs()
    assert loaded.read_graph("encoder", "int8") == graphs["encoder"]["int8"]
    assert loaded.read_graph("trained_head", "fp32") == graphs["trained_head"]["fp32"]


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(names, min_size=1, max_size=5, unique=True))
def test_any_label_names_survive_the_round_trip(tmp_path: Path, names: list[str]) -> None:
    labels = tuple(Label(name=name) for name in names)
    bundle = write_tiny_bundle(tmp_path, tiny_card(num_labels=len(labels)), labels)
    assert load_bundle(bundle.path).labels == labels


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_changed_byte_of_a_listed_file_is_refused(
    tiny_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = copy_bundle(tiny_bundle, tmp_path_factory.mktemp("changed"))
    file = path / data.draw(st.sampled_from(sorted(tiny_bundle.manifest.files)))
    content = bytearray(file.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= data.draw(st.integers(1, 255))
    file.write_bytes(content)
    with pytest.raises(BundleError, match="does not match its sha256"):
        load_bundle(path)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), r"must have \d+ bytes; it has \d+"),
        (Path.unlink, "cannot be read"),
    ],
)
def test_truncated_or_missing_file_is_refused(
    tiny_bundle: Bundle, tmp_path: Path, damage: Callable[[Path], object], reason: str
) -> None:
    path = copy_bundle(tiny_bundle, tmp_path)
    damage(path / "encoder.fp32.onnx")
    with pytest.raises(BundleError, match=reason):
        load_bundle(path)


def test_bundle_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, verify = write_tiny_bundle(tmp_path).path, reader._verify

    def replace_first(folder: Path, manifest: Manifest) -> Bundle:
        monkeypatch.setattr(reader, "_verify", verify)
        write_tiny_bundle(tmp_path, graphs={**tiny_graphs(), "encoder": {"fp32": tiny_encoder(9)}})
        return verify(folder, manifest)

    monkeypatch.setattr(reader, "_verify", replace_first)
    assert load_bundle(path).precisions() == ("fp32",)


def test_label_named_twice_is_refused(tmp_path: Path) -> None:
    twice = (*TINY_LABELS[:4], TINY_LABELS[0])
    with pytest.raises(BundleError, match="twice"):
        write_tiny_bundle(tmp_path, labels=twice)


def test_head_that_lacks_a_precision_runs_in_fp32(tmp_path: Path) -> None:
    graphs: Graphs = {**tiny_graphs()}
    graphs["trained_head"] = {"fp32": graphs["trained_head"]["fp32"]}
    bundle = write_tiny_bundle(tmp_path, graphs=graphs)
    assert bundle.precisions() == ("fp32", "int8")
    assert bundle.image_precision("encoder", "int8") == "int8"
    assert bundle.image_precision("trained_head", "int8") == "fp32"


def test_head_without_fp32_is_refused_and_the_encoder_may_be_in_int8_alone(tmp_path: Path) -> None:
    graphs: Graphs = {**tiny_graphs()}
    head, graphs["encoder"] = graphs["trained_head"], {"int8": graphs["encoder"]["int8"]}
    with pytest.raises(BundleError, match="trained_head lacks the variant fp32"):
        write_tiny_bundle(tmp_path, graphs=graphs | {"trained_head": {"int8": head["int8"]}})
    bundle = write_tiny_bundle(tmp_path, graphs=graphs)
    assert (bundle.precisions(), bundle.default_precision("cuda")) == (("int8",), "int8")
