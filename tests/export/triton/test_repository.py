from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from google.protobuf import text_format
from numpy.typing import NDArray
from tritonclient.grpc import model_config_pb2

from export import ExportError
from export.__main__ import main
from export.triton.repository import write_repository
from service.bundle.reader import Bundle, load_bundle
from service.bundle.writer import write_bundle
from service.errors import BundleError
from service.images.decode import decode_image
from service.labels.examples import Examples
from service.labels.files import pack_label_set, read_bundle_sets
from tests.support.label_store import make_examples
from tests.support.photos import make_photo
from tests.support.serving import labels_of, send_image, serve_app
from tests.support.tiny_bundle import (
    EMBEDDING_WIDTH,
    TOKENS,
    WIDTH,
    Graphs,
    open_draft,
    tiny_card,
    tiny_graphs,
    write_calibrated_bundle,
    write_draft,
    write_open_bundle,
    write_tiny_bundle,
)

Array = NDArray[Any]
# The service computes scores from the same logits in float64.
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write_calibrated_bundle(tmp_path_factory.mktemp("calibrated"))


@pytest.fixture(scope="module")
def repository(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("triton")
    write_repository(folder, bundle)
    return folder


def read_config(repository: Path, model: str) -> Any:
    text = (repository / model / "config.pbtxt").read_text()
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def run_model(repository: Path, model: str, inputs: dict[str, Array]) -> dict[str, Array]:
    session = onnxruntime.InferenceSession(
        (repository / model / "1" / "model.onnx").read_bytes(), providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def run_ensemble(repository: Path, name: str, images: Array) -> dict[str, Array]:
    """Does what Triton does with an ensemble: the steps, by the names that connect them."""
    config = read_config(repository, name)
    tensors = {config.input[0].name: images}
    for step in config.ensemble_scheduling.step:
        inputs = {theirs: tensors[ours] for theirs, ours in step.input_map.items()}
        given = run_model(repository, step.model_name, inputs)
        tensors |= {ours: given[theirs] for theirs, ours in step.output_map.items()}
    return {output.name: tensors[output.name] for output in config.output}


def read_labels(repository: Path, model: str, output: Any) -> list[str]:
    return (repository / model / output.label_filename).read_text().splitlines()


def decode_all(bundle: Bundle, photos: list[bytes]) -> Array:
    decoded = [decode_image(photo, bundle.card.input, 1_000_000) for photo in photos]
    return np.stack([image.pixels for image in decoded])


@pytest.mark.parametrize(
    ("output", "label_set"), [("scores", "trained"), ("scores_everyday", "everyday")]
)
def test_ensemble_gives_the_scores_of_the_service(
    repository: Path, bundle: Bundle, output: str, label_set: str
) -> None:
    photos = [make_photo(seed) for seed in range(3)]
    name = bundle.card.name
    scores = run_ensemble(repository, name, decode_all(bundle, photos))[output]
    (described,) = (o for o in read_config(repository, name).output if o.name == output)
    names = read_labels(repository, name, described)
    asked = {"threshold": 0, "label_set": label_set}
    with serve_app(bundle.path) as client:
        for photo, row in zip(photos, scores, strict=True):
            served = dict(labels_of(send_image(client, photo, params=asked)))
            assert dict(zip(names, row, strict=True)) == pytest.approx(served, abs=TOLERANCE)


def test_every_model_is_described_as_its_graph_is(repository: Path) -> None:
    for folder in repository.iterdir():
        config = read_config(repository, folder.name)
        assert config.name == folder.name
        if config.platform == "ensemble":
            assert list((folder / "1").iterdir()) == []
            continue
        assert config.HasField("dynamic_batching")
        graph = onnxruntime.InferenceSession((folder / "1" / "model.onnx").read_bytes())
        for described, found in (
            (config.input, graph.get_inputs()),
            (config.output, graph.get_outputs()),
        ):
            assert [tensor.name for tensor in described] == [tensor.name for tensor in found]
            for tensor, own in zip(described, found, strict=True):
                sizes = zip(tensor.dims, own.shape[1:], strict=True)
                # Triton checks a described size that is open in the graph.
                assert all(size == fixed for size, fixed in sizes if isinstance(fixed, int))
            assert all(not isinstance(f.shape[0], int) for f in found)


def test_ensemble_connects_tensors_of_equal_sizes(repository: Path, bundle: Bundle) -> None:
    config = read_config(repository, bundle.card.name)
    known = {config.input[0].name: list(config.input[0].dims)}
    for step in config.ensemble_scheduling.step:
        model = read_config(repository, step.model_name)
        assert model.max_batch_size == config.max_batch_size
        for tensor in model.input:
            assert known[step.input_map[tensor.name]] == list(tensor.dims)
        known |= {step.output_map[tensor.name]: list(tensor.dims) for tensor in model.output}
    for output in config.output:
        assert known[output.name] == list(output.dims)
        assert len(read_labels(repository, config.name, output)) == output.dims[0]


def test_encoder_has_the_warm_up_and_the_queue_limit(repository: Path, bundle: Bundle) -> None:
    config = read_config(repository, f"{bundle.card.name}_encoder")
    assert config.dynamic_batching.default_queue_policy.max_queue_size == 64
    assert [entry.batch_size for entry in config.model_warmup] == [1, config.max_batch_size]


def test_softmax_head_gives_a_softmax(tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path, card=tiny_card(activation="softmax"))
    write_repository(tmp_path / "repository", bundle)
    images = decode_all(bundle, [make_photo(1), make_photo(2)])
    scores = run_ensemble(tmp_path / "repository", "tiny", images)
    assert set(scores) == {"scores"}
    assert scores["scores"].sum(axis=1) == pytest.approx([1.0, 1.0])


def test_command_writes_the_repository_of_a_bundle_and_leaves_other_models(
    bundle: Bundle, repository: Path, tmp_path: Path
) -> None:
    other = tmp_path / "theirs" / "config.pbtxt"
    other.parent.mkdir()
    other.write_text("")
    for _ in range(2):  # the second time it replaces its own
        assert main(["--bundle", str(bundle.path), "--triton", str(tmp_path)]) == 0
    written = {folder.name for folder in repository.iterdir()}
    assert {folder.name for folder in tmp_path.iterdir()} == written | {"theirs"}


def test_repository_is_not_written_in_a_missing_precision(
    open_bundle: Bundle, tmp_path: Path
) -> None:
    with pytest.raises(BundleError, match="fp16"):
        write_repository(tmp_path / "repository", open_bundle, "fp16")
    assert not (tmp_path / "repository").exists()
    assert load_bundle(open_bundle.path) == open_bundle


def test_int8_comes_with_a_warning_for_processors_without_vnni(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--bundle", str(write_tiny_bundle(tmp_path).path), "--triton", str(tmp_path / "r")]
    warning = "in Triton, int8 saturates on x86 processors without VNNI: take fp32 there"
    for precision in ("int8", "fp32"):
        assert main([*arguments, "--triton-precision", precision]) == 0
        assert (warning in capsys.readouterr().err.splitlines()) == (precision == "int8")


def test_head_is_written_in_fp32_when_it_lacks_the_precision(tmp_path: Path) -> None:
    graphs: Graphs = tiny_graphs()
    graphs["trained_head"] = {"fp32": graphs["trained_head"]["fp32"]}
    bundle = write_tiny_bundle(tmp_path, graphs=graphs)
    write_repository(tmp_path / "repository", bundle, "int8")
    for model, graph, precision in (
        ("tiny_encoder", "encoder", "int8"),
        ("tiny_trained", "trained_head", "fp32"),
    ):
        written = onnx.load(tmp_path / "repository" / model / "1" / "model.onnx")
        expected = onnx.load_from_string(bundle.read_graph(graph, precision))
        assert written.graph.initializer == expected.graph.initializer


def test_bundle_without_labels_gives_no_repository(tmp_path: Path) -> None:
    bundle = write_open_bundle(tmp_path, trained=False, encodes_text=False)
    with pytest.raises(ExportError, match="no labels"):
        write_repository(tmp_path / "repository", bundle)
    assert not (tmp_path / "repository").exists()
    write_repository(tmp_path / "repository", write_open_bundle(tmp_path, trained=False))
    assert (tmp_path / "repository" / "tiny-open_set_everyday").exists()


def test_labels_that_learnt_from_photos_are_left_out_and_named(
    bundle: Bundle, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (everyday,) = read_bundle_sets(bundle)
    embeddings = np.eye(len(everyday.names), EMBEDDING_WIDTH, dtype=np.float32)
    examples = Examples.empty(WIDTH).add(make_examples(2, width=WIDTH))
    tokens = np.random.default_rng(0).normal(size=(1, TOKENS, WIDTH)).astype(np.float32)
    scores, own = [], bundle.photo_fingerprint
    for learnt, encoder in ((["chair"], "another"), (["chair"], own), (everyday.names, own)):
        learnt = replace(everyday, examples=dict.fromkeys(learnt, examples), encoder=encoder)
        sets = {"everyday.npz": pack_label_set(learnt, embeddings)}
        draft = replace(open_draft(bundle.card), labels=bundle.labels, label_sets=sets)
        folder = tmp_path / str(len(scores))
        write_repository(folder, write_draft(tmp_path, draft))
        line = f"since they learnt from photos: {', '.join(learnt)}"
        assert (line in caplog.text) == (encoder == own)
        model = "tiny-open_set_everyday"
        if not (folder / model).exists():
            break
        names = (folder / model / "labels.txt").read_text().split()
        values = run_model(folder, model, {"tokens": tokens})["scores"][0].tolist()
        scores.append(dict(zip(names, values, strict=True)))
    everything, known = scores
    assert tuple(everything) == everyday.names
    assert known == {name: everything[name] for name in everyday.names[1:]}


def test_repository_never_replaces_a_folder_that_is_no_model(tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundles")
    (tmp_path / "tiny_trained").mkdir()
    with pytest.raises(ExportError, match="tiny_trained exists and is not a Triton model"):
        write_repository(tmp_path, bundle)
    assert {path.name for path in tmp_path.iterdir()} == {"bundles", "tiny_trained"}


def test_new_bundle_is_not_made_if_models_have_folders_that_are_no_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models, places = tmp_path / "models", ("new", "new_encoder", "new_trained", "new_set_zoo")
    for place in (*places, "new_set_other"):
        (models / place).mkdir(parents=True)
    torch.save({}, tmp_path / "empty.pth")
    (tmp_path / "zoo.json").write_text('{"name": "zoo", "labels": ["red panda"]}')
    new = ["--checkpoint", str(tmp_path / "empty.pth"), "--out", str(tmp_path / "new")]
    new += ["--open-head", str(tmp_path / "empty.pth"), "--label-set", str(tmp_path / "zoo.json")]
    assert main([*new, "--triton", str(models)]) == 2
    expected = "; ".join(f"{models / place} exists and is not a Triton model" for place in places)
    assert capsys.readouterr().err == f"error: {expected}\n"
    for place in places:
        (models / place / "config.pbtxt").touch()
    assert main([*new, "--triton", str(models)]) == 2
    assert "no tensors under a usual name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ("tiny", "tiny_encoder", "tiny_encoder"),
        ("tiny_encoder", "tiny", "tiny_encoder"),
        ("tiny_set_a", "tiny", "tiny_set_a_set_b"),
    ],
)
def test_models_of_other_bundles_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], first: str, second: str, shared: str
) -> None:
    models, bundles = tmp_path / "models", []
    for name, label_set in ((first, "b"), (second, "a_set_b")):
        sets = {f"{label_set}.json": b'{"name": "%s", "labels": ["x"]}' % label_set.encode()}
        draft = open_draft()
        card = draft.card.model_copy(update={"name": name})
        draft = replace(draft, card=card, label_sets=sets)
        bundles.append(str(write_bundle(tmp_path / name, draft).path))
    assert main(["--bundle", bundles[0], "--triton", str(models)]) == 0
    before = sorted((path, path.is_file() and path.read_bytes()) for path in models.rglob("*"))
    assert main(["--bundle", bundles[1], "--triton", str(models)]) == 2
    reason = f"{models / shared} is a model of {first}: rename one of the bundles"
    assert reason in capsys.readouterr().err
    assert before == sorted(
        (path, path.is_file() and path.read_bytes()) for path in models.rglob("*")
    )
    assert main(["--bundle", bundles[0], "--triton", str(models)]) == 0


def test_bundle_inside_the_repository_is_kept(tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path)
    with pytest.raises(ExportError, match="is in the folder of the Triton model tiny"):
        write_repository(tmp_path, bundle)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]
    assert load_bundle(bundle.path) == bundle
