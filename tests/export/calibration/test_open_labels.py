"""One bundle with a trained and an open head, from checkpoints to what the service reads."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from export import ExportError
from export.accuracy import predict_logits, read_graphs
from export.build import ExportRequest, build_bundle
from export.calibration import screen as screen_module
from export.calibration.screen import fit_screen
from export.graphs.graph import PIXELS_TO_OPEN_LOGITS
from export.sources.label_sets import embed_label_set, read_label_set
from export.sources.labelled_photos import PhotoReader, read_splits
from export.sources.open import OpenRequest, describe_head, read_open_source
from export.sources.trained import read_source
from models.checkpoints.checkpoint import read_checkpoint
from models.checkpoints.description import CheckpointError
from models.checkpoints.open_head import Origin, fingerprint_encoder, write_open_head
from models.commands import RequestError
from models.data.records import DataError
from models.heads.zero_shot import ZeroShotMLDecoder
from models.text import TextEncoder, read_text_encoder
from models.timm_model import read_class_names
from service.bundle.reader import Bundle
from service.calibration import find_threshold, find_thresholds
from service.engine.heads import Embeddings, ScreenedLogits, ScreenedQueries
from service.engine.session_set import open_session_set
from service.engine.sessions import SessionConfig
from service.labels.definition import LabelSetRecord
from service.labels.encoders import open_label_encoder
from service.labels.files import pack_label_set, parse_label_set, read_bundle_sets
from service.labels.sources.examples import Examples
from service.pipeline.loading import open_encoders
from service.pipeline.scoring import compute_scores
from service.settings import Settings
from tests.export.conftest import NOUNS
from tests.export.graphs.test_heads import OPEN
from tests.export.tiny_network import CONTRACT, LABELS, assert_close, write_folder
from tests.models.tiny_text import WIDTH, write_text_encoder
from tests.support.label_store import make_examples
from tests.support.tiny_bundle import EMBEDDING_WIDTH, SPACE, run_bundle

TEMPLATE = "a photo of {}"
NAMES = ("red", "dark circle", "photo", "grey", "square")  # 3 labels are traced
READER = PhotoReader(CONTRACT)
SHAPES: list[object] = [
    "red",
    {"name": "green", "threshold": 0.875},
    {"name": "blue", "prompt": "a dark red thing"},
    "square",
]
CHUNK_TOLERANCE = 1e-5  # between labels scored together and apart, which may sum in another order


@pytest.fixture(scope="module")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_encoder(tmp_path_factory.mktemp("text") / "tiny")


@pytest.fixture(scope="module")
def text(text_folder: Path) -> TextEncoder:
    return read_text_encoder(text_folder)


def make_open_head() -> ZeroShotMLDecoder:
    torch.manual_seed(0)
    space = {"embedding_width": WIDTH, "embedding_encoder": "tiny", "embedding_template": TEMPLATE}
    head = ZeroShotMLDecoder(OPEN.model_copy(update={**space, "num_prototypes": 6})).eval()
    head.votes.names.copy_(functional.normalize(torch.randn(6, WIDTH), dim=1))
    return head


def write_head(path: Path, head: ZeroShotMLDecoder, encoder: str, text: TextEncoder) -> Path:
    origin = Origin(
        encoder_fingerprint=encoder,
        text_encoder_sha256=text.sha256,
        label_names=("blue", "green"),
        concept_names=("square",),
        notes={},
    )
    write_open_head(path, head, origin)
    return path


@pytest.fixture(scope="module")
def opened(
    tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, text: TextEncoder, text_folder: Path
) -> OpenRequest:
    folder = tmp_path_factory.mktemp("open")
    label_set = folder / "shapes.json"
    label_set.write_text(json.dumps({"name": "shapes", "labels": SHAPES}))
    encoder = fingerprint_encoder(read_checkpoint(checkpoint).take_network().backbone)
    head = write_head(folder / "open.safetensors", make_open_head(), encoder, text)
    return OpenRequest(head, text_folder, (label_set,))


@pytest.fixture(scope="module")
def bundle(
    tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, folder: Path, opened: OpenRequest
) -> Bundle:
    """Every precision, calibrated on pictures."""
    return build_bundle(
        ExportRequest(
            checkpoint,
            tmp_path_factory.mktemp("bundles") / "model",
            opened=replace(opened, open_photos=folder),
            photos=folder,
            precisions=frozenset({"fp16", "int8"}),
            compact_weights=True,
        )
    )


def test_bundle_has_both_heads_in_every_precision(bundle: Bundle) -> None:
    assert set(bundle.manifest.graphs) == {
        "encoder", "trained_head", "open_head", "label_encoder", "text_encoder",
        "trained_head_maps", "open_head_maps", "screened_head",
    }  # fmt: skip
    assert bundle.precisions() == ("fp32", "fp16", "int8")
    assert [bundle.image_precision("open_head", p) for p in bundle.precisions()] == [
        "fp32", "fp16", "fp32",
    ]  # fmt: skip
    assert set(bundle.manifest.graphs["trained_head_maps"]) == {"fp32"}
    assert bundle.label_precision("label_encoder") == "fp32"
    assert bundle.label_precision("text_encoder") == "int8"
    space = bundle.card.open_head.embedding_space
    assert (space.encoder, space.width, space.template) == ("tiny", WIDTH, TEMPLATE)


def test_screen_is_measured_on_test_photos_and_other_names(bundle: Bundle, folder: Path) -> None:
    screen = bundle.card.open_head.screen
    assert screen.dataset == read_splits(folder, LABELS, PhotoReader(CONTRACT)).test.dataset
    assert screen.names == len(NOUNS) // 2
    assert (screen.best_found, screen.above_found) == (1.0, 1.0)  # it keeps all of so few


def test_screened_head_gives_the_logits_of_the_open_head(bundle: Bundle) -> None:
    sessions = open_session_set(bundle, SessionConfig("cpu", "fp32"))
    encoder = open_label_encoder(bundle, 1)
    embeddings = np.random.default_rng(0).normal(size=(50, WIDTH)).astype(np.float32)
    vectors, ones = encoder.encode(embeddings), np.ones(50, np.float32)
    screened = ScreenedQueries(vectors.queries, vectors.keys, ones, ones, 10)
    images = np.zeros((2, CONTRACT.height, CONTRACT.width, 3), np.uint8)
    for result in sessions.run(images, [[screened, vectors.queries]] * 2):
        kept, full = result.logits
        assert isinstance(kept, ScreenedLogits)
        assert not isinstance(full, ScreenedLogits)
        np.testing.assert_allclose(kept.logits, full[kept.positions], atol=1e-5)


def test_screen_that_finds_too_few_labels_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    head = make_open_head()
    tokens = torch.randn(4, 16, head.config.encoder_width)
    embeddings = torch.randn(60, WIDTH)
    assert fit_screen(head, (4, 4), tokens, embeddings) is not None
    monkeypatch.setattr(screen_module, "_FACTORS", (0.01,))
    assert fit_screen(head, (4, 4), tokens, embeddings) is None


def test_thresholds_are_of_best_f1_with_the_served_embeddings(bundle: Bundle, folder: Path) -> None:
    val = read_splits(folder, LABELS, PhotoReader(CONTRACT)).val
    served = read_graphs(bundle, PIXELS_TO_OPEN_LOGITS, bundle.default_precision("cpu"))
    logits = predict_logits(served, val, embed(bundle, [*LABELS]))
    scores, red = compute_scores(logits, "sigmoid"), LABELS.index("red")
    expected = find_threshold(scores[:, red], val.targets[:, red]).threshold
    own = find_thresholds(LABELS, scores, val.targets)["red"].threshold
    (shapes,) = read_bundle_sets(bundle)
    assert shapes.names == ("red", "green", "blue", "square")
    # Red is the only label that the head was not trained on.
    assert 0.0 < expected < 1.0
    assert bundle.card.open_head.threshold == pytest.approx(expected, abs=1e-6)
    assert shapes.thresholds == (pytest.approx(own, abs=1e-6), 0.875, None, None)


def embed(bundle: Bundle, labels: list[object]) -> Embeddings:
    """Embeds labels as the service does."""
    record = LabelSetRecord.model_validate({"name": "some", "labels": labels})

    async def encode() -> Embeddings:
        return await open_encoders(Settings(bundle=bundle.path), bundle).embed(record.define())

    return asyncio.run(encode())


def test_ready_sets_have_the_services_embeddings(bundle: Bundle) -> None:
    (shapes,) = read_bundle_sets(bundle)
    assert shapes.given == (0, 1, 2, 3)
    assert shapes.embedding_space == bundle.card.open_head.embedding_space.fingerprint
    embeddings = embed(bundle, SHAPES)
    # Stored in 16 bits.
    np.testing.assert_allclose(shapes.embeddings, embeddings, atol=1e-3, rtol=0)


def test_labels_are_scored_independently(bundle: Bundle, text: TextEncoder) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 48, 3), dtype=np.uint8)
    embeddings = text.embed_names(NAMES, TEMPLATE)
    logits = run_bundle(bundle, pixels, embeddings.numpy())
    for size in (1, 2, 4):
        parts = [run_bundle(bundle, pixels, part.numpy()) for part in embeddings.split(size)]
        assert_close(np.concatenate(parts, axis=1), logits, CHUNK_TOLERANCE)


def test_label_set_with_examples_keeps_them(tmp_path: Path) -> None:
    examples = Examples.empty(8).add(make_examples(2, width=8))
    plain = LabelSetRecord.model_validate({"name": "mugs", "labels": ["mug"]}).define()
    learnt = replace(plain, lessons={"mug": {"examples": examples}}, encoder="another")
    path, blank = tmp_path / "mugs.npz", np.zeros((1, EMBEDDING_WIDTH), np.float32)
    path.write_bytes(pack_label_set(learnt, blank))
    embedded = embed_label_set(read_label_set(path, SPACE), SPACE, lambda _: blank)
    again = parse_label_set(pack_label_set(embedded), ".npz", "mugs")
    assert (again.given, again.encoder) == ((0,), "another")
    assert again.lessons["mug"]["examples"].to_bytes() == examples.to_bytes()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"labels": []}, "labels"),
        (
            {"labels": [{"name": "cat", "promt": "a cat"}]},
            r".* did you mean 'prompt'\? Known names",
        ),
        ({"labels": ["cat", "dog", "cat"]}, "Label 'cat' appears twice"),
        ({"labels": [{"name": "dog", "embedding": [1.0] * 5}]}, f"An embedding needs {WIDTH}"),
        ({"embedding_space": "0" * 64}, "embedding_space is '0000"),
    ],
)
def test_label_set_is_refused_when_it_does_not_fit_the_head(
    checkpoint: Path, opened: OpenRequest, tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    source, path = read_source(checkpoint), tmp_path / "zoo.json"
    good = {"name": "zoo", "labels": ["cat", {"name": "dog", "embedding": [1.0] * WIDTH}]}
    path.write_text(json.dumps({**good, **change}))
    with pytest.raises(ExportError, match=f"zoo.json: .*{reason}"):
        read_open_source(replace(opened, label_set=(path,)), source, READER)
    space = describe_head(read_open_source(opened, source, READER).head.config).embedding_space
    path.write_text("\ufeff" + json.dumps({**good, "embedding_space": space.fingerprint}))
    assert read_open_source(replace(opened, label_set=(path,)), source, READER).label_sets


def test_files_that_do_not_fit_are_refused(
    checkpoint: Path, text: TextEncoder, opened: OpenRequest, tmp_path: Path
) -> None:
    trained = write_folder(tmp_path / "trained")
    index = json.loads((trained / "labels.json").read_text())
    index["label_names"] = ["green", "blue"]
    for image in index["images"].values():
        image["labels"] = [name for name in image["labels"] if name != "red"]
    (trained / "labels.json").write_text(json.dumps(index))
    other = write_text_encoder(tmp_path / "other", seed=1)
    foreign = write_head(tmp_path / "open.safetensors", make_open_head(), "0" * 64, text)
    source = read_source(checkpoint)
    for change, error, reason in (
        ({"open_head": checkpoint}, CheckpointError, "has no open head of ours"),
        ({"open_head": foreign}, CheckpointError, "another encoder"),
        ({"text_encoder": other}, CheckpointError, "another text encoder"),
        ({"text_encoder": tmp_path}, RequestError, "has no BERT encoder"),
        ({"label_set": (tmp_path / "none.json",)}, ExportError, "cannot be read"),
        ({"label_set": opened.label_set * 2}, ExportError, "repeated"),
        ({"open_photos": trained}, ExportError, "no label that was not trained"),
        ({"open_photos": tmp_path}, DataError, "neither labels.json"),
    ):
        with pytest.raises(error, match=reason):
            read_open_source(replace(opened, **change), source, READER)  # type: ignore[arg-type]


def test_everyday_labels_are_plain_and_unique() -> None:
    path = Path(__file__).parents[3] / "export" / "label_sets" / "everyday.json"
    record = LabelSetRecord.model_validate_json(path.read_bytes())
    names = [label.name for label in record.labels]
    assert 300 <= len(names) <= 1000
    assert names == sorted(set(names))
    assert names == json.loads(path.read_text())["labels"]  # as written: NFC, no white space
    assert all(name == name.lower() and len(name) <= 30 for name in names)
    # Names of ImageNet are cleaned of its 118 breeds of dogs; the dog itself stays.
    breeds = {name.lower() for name in read_class_names("imagenet-1k")[151:269]}
    assert breeds.isdisjoint(names)
    assert "dog" in names
