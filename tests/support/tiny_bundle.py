"""A bundle of a few kilobytes with seeded random weights, made by onnx alone (no torch).

The encoder turns 4 x 4 patches into tokens, the trained head pools them into five logits. The open
head takes each query's best product with any token; the text encoder adds up vectors of the text's
bytes. With maps, the memory is the tokens, and a map is a label's products with them.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import ArrayLike, NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers

from service.bundle.card import (
    Activation,
    BackgroundPhotos,
    ByPurpose,
    Calibration,
    EmbeddingSpace,
    HeadCalibration,
    InputContract,
    Label,
    MeasuredThreshold,
    ModelCard,
    OpenHead,
    Precision,
    Provenance,
    Screen,
    TrainedHead,
)
from service.bundle.manifest import GraphName
from service.bundle.reader import Bundle
from service.bundle.writer import BundleDraft, write_bundle
from service.engine.heads import LabelVectors, QueryArray
from service.images.decode import PixelArray
from service.labels.definition import Definition
from service.labels.label_set import LabelSet, make_open_set
from service.labels.whitening import MIN_PHOTOS, fit_whitening
from service.labels.words import Words, pack_words
from tests.support.photos import make_picture

SIDE = 16
PATCH = 4
TOKENS = (SIDE // PATCH) ** 2
WIDTH = 8
TINY_LABELS = (
    Label(name="cat", threshold=0.4, precision=0.9, recall=0.8, positives=20),
    Label(name="dog", threshold=0.6, precision=0.8, recall=0.7, positives=30),
    Label(name="car", threshold=0.5, precision=0.7, recall=0.9, positives=40),
    Label(name="tree", description="any tall plant"),
    Label(name="person", threshold=0.3, precision=0.6, recall=0.9, positives=50),
)
PLAIN_HEAD = TrainedHead(kind="gap", num_labels=len(TINY_LABELS), activation="sigmoid")
"""Without calibration and threshold."""
EMBEDDING_WIDTH = 6
QUERY_WIDTH = WIDTH
SPACE = EmbeddingSpace(encoder="tiny-bytes", width=EMBEDDING_WIDTH, template="a {}")
OPEN_HEAD = OpenHead(kind="ml_decoder", embedding_space=SPACE, threshold=0.3)
SCREEN = Screen(
    dataset="made/val", images=9, names=20, scored=12.5, best_found=0.999, above_found=1.0
)
EVERYDAY = b'{"name": "everyday", "labels": ["chair", {"name": "table", "threshold": 0.7}, "lamp"]}'
Graphs = Mapping[GraphName, Mapping[Precision, bytes]]


def tiny_card(
    name: str = "tiny", *, num_labels: int = len(TINY_LABELS), activation: Activation = "sigmoid"
) -> ModelCard:
    """Returns the card of a tiny model."""
    return ModelCard(
        name=name,
        version="1.0",
        license="Apache-2.0",
        provenance=Provenance(
            backbone="tiny", checkpoint_sha256="0" * 64, training_data="none", tools={}
        ),
        input=InputContract(
            height=SIDE, width=SIDE, resize_mode="squash", interpolation="bilinear"
        ),
        trained_head=TrainedHead(kind="gap", num_labels=num_labels, activation=activation),
    )


def open_card(name: str = "tiny-open", *, trained: bool = True, **changes: Any) -> ModelCard:
    """Returns the card of a tiny model with `OPEN_HEAD`, changed, and a trained head or none."""
    card = tiny_card(name).model_copy(update={"open_head": OPEN_HEAD.model_copy(update=changes)})
    return card if trained else card.model_copy(update={"trained_head": None})


def tiny_encoder(seed: int = 0, *, side: int = SIDE, output: str = "tokens") -> bytes:
    """Returns the encoder: uint8 [B, side, side, 3] -> float32 [B, S, C]."""
    kernel = np.random.default_rng(seed).normal(0, 0.3, (WIDTH, 3, PATCH, PATCH))
    return parse_graph(
        f"""(uint8[B, {side}, {side}, 3] images) =>
            (float[B, {(side // PATCH) ** 2}, {WIDTH}] {output}) {{
            bytes = Cast <to = 1> (images)
            scaled = Mul (bytes, scale)
            centred = Sub (scaled, one)
            planes = Transpose <perm = [0, 3, 1, 2]> (centred)
            patches = Conv <strides = [{PATCH}, {PATCH}]> (planes, kernel)
            active = Relu (patches)
            columns = Reshape (active, flat)
            {output} = Transpose <perm = [0, 2, 1]> (columns)
        }}""",
        kernel=kernel.astype(np.float32),
        scale=np.float32(1 / 127.5),
        one=np.float32(1),
        flat=[0, WIDTH, -1],
    )


def tiny_head(seed: int = 1, *, num_labels: int = len(TINY_LABELS), width: int = WIDTH) -> bytes:
    """Returns the head: float32 [B, S, C] -> logits float32 [B, N]."""
    random = np.random.default_rng(seed)
    return parse_graph(
        f"""(float[B, S, {width}] tokens) => (float[B, {num_labels}] logits) {{
            pooled = ReduceMean <keepdims = 0> (tokens, axis)
            product = MatMul (pooled, weight)
            logits = Add (product, bias)
        }}""",
        weight=random.normal(0, 2, (width, num_labels)).astype(np.float32),
        bias=random.normal(0, 1, num_labels).astype(np.float32),
        axis=[1],
    )


def add_memory(head: bytes) -> bytes:
    """Returns a head that gives its tokens as `memory` too."""
    return _add_copy(head, "tokens", "memory", ["B", "S", WIDTH])


def add_keys(label_encoder: bytes) -> bytes:
    """Returns a label encoder that gives `projected` [L, K], its queries again, too."""
    return _add_copy(label_encoder, "queries", "projected", ["L", QUERY_WIDTH])


def _add_copy(graph: bytes, value: str, copy: str, sizes: list[int | str]) -> bytes:
    model = onnx.load_model_from_string(graph)
    model.graph.node.append(helper.make_node("Identity", [value], [copy]))
    model.graph.output.append(helper.make_tensor_value_info(copy, TensorProto.FLOAT, sizes))
    return bytes(model.SerializeToString())


def tiny_trained_maps(seed: int = 1, *, num_labels: int = len(TINY_LABELS)) -> bytes:
    """Returns the trained labels' maps: memory [B, S, C] and labels [L] -> maps [B, L, 4, 4]."""
    weight = np.random.default_rng(seed).normal(0, 2, (num_labels, WIDTH)).astype(np.float32)
    return _tiny_maps("int64[L] labels", "Gather (weight, labels)", weight=weight)


def tiny_open_maps() -> bytes:
    """Returns the open labels' maps: memory [B, S, C] and queries [L, K] -> maps [B, L, 4, 4]."""
    return _tiny_maps(f"float[L, {QUERY_WIDTH}] queries", "Identity (queries)")


def _tiny_maps(labels: str, rows: str, **constants: ArrayLike) -> bytes:
    side = SIDE // PATCH
    return parse_graph(
        f"""(float[B, {TOKENS}, {WIDTH}] memory, {labels}) => (float[B, L, {side}, {side}] maps) {{
            rows = {rows}
            columns = Transpose <perm = [0, 2, 1]> (memory)
            products = MatMul (rows, columns)
            found = Relu (products)
            largest = ReduceMax <keepdims = 1> (found, last)
            divisor = Max (largest, tiny)
            shares = Div (found, divisor)
            maps = Reshape (shares, shape)
        }}""",
        shape=[0, 0, side, side],
        last=[-1],
        tiny=np.float32(1e-30),
        **constants,
    )


def tiny_open_head(*, query_width: int = QUERY_WIDTH) -> bytes:
    """Returns the open head: tokens [B, S, C] and queries [L, K] -> logits [B, L]."""
    return parse_graph(
        f"""(float[B, S, {WIDTH}] tokens, float[L, {query_width}] queries) =>
            (float[B, L] logits) {{
            columns = Transpose <perm = [1, 0]> (queries)
            products = MatMul (tokens, columns)
            best = ReduceMax <keepdims = 0> (products, axis)
            logits = Sub (best, one)
        }}""",
        axis=[1],
        one=np.float32(1),
    )


def tiny_screened_head(*, key_width: int = QUERY_WIDTH, most: int = 4096) -> bytes:
    """Returns a screened head that estimates with the open head's own logits.

    It scores no more labels than it needs, and at most `most`.
    """
    return parse_graph(
        f"""(float[B, S, {WIDTH}] tokens, float[L, {QUERY_WIDTH}] queries, float[L] scale,
             float[L] shift, int64[B] wanted, float[L, {key_width}] projected) =>
            (float[B, k] logits, int64[B, k] positions, int64[B] needed,
             float[B, S, {WIDTH}] memory) {{
            columns = Transpose <perm = [1, 0]> (projected)
            products = MatMul (tokens, columns)
            best = ReduceMax <keepdims = 0> (products, middle)
            all = Sub (best, one)
            scaled = Mul (all, scale)
            ranks = Add (scaled, shift)
            reach = GreaterOrEqual (ranks, zero)
            ones = Cast <to = 7> (reach)
            above = ReduceSum <keepdims = 0> (ones, middle)
            asked = Max (above, wanted)
            size = Shape (shift)
            needed = Min (asked, size)
            largest = ReduceMax <keepdims = 1> (needed)
            count = Min (largest, most)
            values, positions = TopK (ranks, count)
            logits = GatherElements <axis = 1> (all, positions)
            memory = Identity (tokens)
        }}""",
        middle=[1],
        one=np.float32(1),
        zero=np.float32(0),
        most=[most],
    )


def tiny_label_encoder(seed: int = 3, *, width: int = EMBEDDING_WIDTH) -> bytes:
    """Returns the label encoder: embeddings [L, E] -> queries [L, K]."""
    weight = np.random.default_rng(seed).normal(0, 2, (width, QUERY_WIDTH)).astype(np.float32)
    return parse_graph(
        f"""(float[L, {width}] embeddings) => (float[L, {QUERY_WIDTH}] queries) {{
            product = MatMul (embeddings, weight)
            queries = Tanh (product)
        }}""",
        weight=weight,
    )


def tiny_text_encoder(seed: int = 4) -> bytes:
    """Returns the text encoder: input_ids and attention_mask [L, T] -> embeddings [L, E]."""
    table = np.random.default_rng(seed).normal(0, 1, (257, EMBEDDING_WIDTH)).astype(np.float32)
    return parse_graph(
        f"""(int64[L, T] input_ids, int64[L, T] attention_mask) =>
            (float[L, {EMBEDDING_WIDTH}] embeddings) {{
            vectors = Gather (table, input_ids)
            mask = Cast <to = 1> (attention_mask)
            column = Unsqueeze (mask, last)
            real = Mul (vectors, column)
            sum = ReduceSum <keepdims = 0> (real, middle)
            length = ReduceL2 <keepdims = 1> (sum, last)
            embeddings = Div (sum, length)
        }}""",
        table=table,
        last=[-1],
        middle=[1],
    )


def tiny_tokenizer() -> bytes:
    """Returns a tokenizer of single bytes; token 0 is padding."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"[PAD]": 0, **{byte: i for i, byte in enumerate(alphabet, start=1)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    # As the files of real encoders do, which pad everything to one length.
    tokenizer.enable_padding(length=16)
    return tokenizer.to_str().encode()


def parse_graph(text: str, **constants: ArrayLike) -> bytes:
    """Returns a checked, serialized model of a graph in ONNX's text form."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> tiny {text}')
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    )
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def tiny_graphs() -> Graphs:
    """Returns both graphs; the `int8` variant has other weights, which tests notice."""
    return {
        "encoder": {"fp32": tiny_encoder(), "int8": tiny_encoder(seed=2)},
        "trained_head": {"fp32": tiny_head(), "int8": tiny_head()},
    }


def open_graphs(*, trained: bool = True, encodes_text: bool = True) -> Graphs:
    """Returns the graphs of a model with an open head."""
    graphs: dict[GraphName, dict[Precision, bytes]] = {
        "encoder": {"fp32": tiny_encoder()},
        "open_head": {"fp32": tiny_open_head()},
        "label_encoder": {"fp32": tiny_label_encoder()},
    }
    if trained:
        graphs["trained_head"] = {"fp32": tiny_head()}
    if encodes_text:
        graphs["text_encoder"] = {"int8": tiny_text_encoder()}
    return graphs


def open_draft(
    card: ModelCard | None = None, *, trained: bool = True, encodes_text: bool = True
) -> BundleDraft:
    """Returns the draft of a bundle with an open head and the label set `everyday`."""
    return BundleDraft(
        card=card or open_card(trained=trained),
        labels=TINY_LABELS if trained else (),
        graphs=open_graphs(trained=trained, encodes_text=encodes_text),
        tokenizer=tiny_tokenizer() if encodes_text else None,
        label_sets={"everyday.json": EVERYDAY} if encodes_text else {},
    )


WORDS = {
    "cat": Words(("puss",), ("pet", "animal"), {"de": "Katze", "fr": "chat"}),
    "dog": Words(("hound",), ("pet", "animal"), {"de": "Hund", "fr": "chien"}),
    "car": Words(("auto",), ("vehicle",), {"de": "Auto"}),
    "chair": Words(parents=("furniture",), translations={"de": "Stuhl"}),
    "table": Words(("bench",), ("furniture",), {"de": "Bank"}),
    "lamp": Words(translations={"de": "Bank"}),
    "animal": Words(translations={"de": "Tier"}),
}


def write_worded_bundle(parent: Path) -> Bundle:
    """Writes the open bundle with `WORDS`."""
    return write_draft(parent, replace(open_draft(), words=pack_words(WORDS).encode()))


def write_draft(parent: Path, draft: BundleDraft) -> Bundle:
    """Writes a bundle into `parent`, under its model's name."""
    return write_bundle(parent / draft.card.name, draft)


def write_calibrated_bundle(parent: Path) -> Bundle:
    """Writes a tiny bundle whose heads, label `dog` and trained names have calibrations."""
    trained = PLAIN_HEAD.model_copy(update={"calibration": make_calibration(2.0, -0.5)})
    pairs = make_calibration(0.5, -1.0), make_calibration(0.75, 1.0)
    card = open_card(calibration=pairs[0], trained_names=pairs[1])
    own = {"calibration": Calibration(scale=1.5, shift=0.25)}
    labels = [
        label.model_copy(update=own) if label.name == "dog" else label for label in TINY_LABELS
    ]
    sets = {"everyday.json": b'{"name": "everyday", "labels": ["chair", "cat", "lamp"]}'}
    draft = open_draft(card.model_copy(update={"trained_head": trained}))
    return write_draft(parent, replace(draft, labels=labels, label_sets=sets))


def make_calibration(scale: float, shift: float) -> HeadCalibration:
    """Returns a head's calibration with made-up figures."""
    return HeadCalibration(
        scale=scale,
        shift=shift,
        dataset="made/val",
        images=100,
        labels=5,
        error_before=0.2,
        error_after=0.01,
        bins=(),
    )


def make_by_purpose(balanced: float, recall: float, precise: float | None = None) -> ByPurpose:
    """Returns thresholds with made-up figures; bundles before schema 5 have no `precise`."""
    points: ByPurpose = {
        "balanced": MeasuredThreshold(threshold=balanced, precision=0.8, recall=0.4),
        "recall": MeasuredThreshold(threshold=recall, precision=0.6, recall=0.8),
    }
    if precise is not None:
        points["precise"] = MeasuredThreshold(threshold=precise, precision=0.9, recall=0.3)
    return points


def write_measured_bundle(parent: Path) -> Bundle:
    """Writes a bundle with thresholds by purpose; `cat` has its own, `precise` excepted."""
    card = open_card("tiny-measured", by_purpose=make_by_purpose(0.25, 0.125, 0.65))
    trained = PLAIN_HEAD.model_copy(update={"by_purpose": make_by_purpose(0.45, 0.35, 0.5)})
    own = {"by_purpose": make_by_purpose(0.55, 0.0625)}
    labels = [la.model_copy(update=own) if la.name == "cat" else la for la in TINY_LABELS]
    draft = open_draft(card.model_copy(update={"trained_head": trained}))
    return write_draft(parent, replace(draft, labels=labels))


def write_changed_bundle(parent: Path, tokenizer: bytes | None = None, **graphs: bytes) -> Bundle:
    """Writes a tiny bundle with an open head, some of its files replaced, into `parent`."""
    draft = change_graphs(open_draft(), **graphs)
    return write_draft(parent, replace(draft, tokenizer=tokenizer or draft.tokenizer))


def change_graphs(draft: BundleDraft, **graphs: Any) -> BundleDraft:
    """Returns a draft with these graphs in every precision of its own, others in fp32."""
    own: dict[Any, Any] = dict(draft.graphs)
    made = {name: dict.fromkeys(own.get(name, ["fp32"]), graph) for name, graph in graphs.items()}
    return replace(draft, graphs=own | made)


def write_screened_bundle(parent: Path, **graphs: bytes) -> Bundle:
    """Writes a tiny bundle with an open head and a screen, some graphs replaced, into `parent`."""
    screened = {
        "label_encoder": add_keys(tiny_label_encoder()),
        "open_head": add_memory(tiny_open_head()),
        "open_head_maps": tiny_open_maps(),
        "screened_head": tiny_screened_head(),
        **graphs,
    }
    by_purpose = make_by_purpose(0.6, 0.2)
    draft = open_draft(open_card("tiny-screen", screen=SCREEN, by_purpose=by_purpose))
    return write_draft(parent, change_graphs(draft, **screened))


def write_open_bundle(parent: Path, *, trained: bool = True, encodes_text: bool = True) -> Bundle:
    """Writes a tiny bundle with an open head into `parent`, under its model's name."""
    return write_draft(parent, open_draft(trained=trained, encodes_text=encodes_text))


def write_learning_bundle(parent: Path, draft: BundleDraft | None = None) -> Bundle:
    """Writes a bundle with an open head, or another, with a background of made photos."""
    seeds = range(1000, 1000 + MIN_PHOTOS)
    photos = [np.asarray(make_picture(seed, SIDE, SIDE)) for seed in seeds]
    encoder = ort.InferenceSession(tiny_encoder(), providers=["CPUExecutionProvider"])
    means = encoder.run(None, {"images": np.stack(photos)})[0].mean(axis=1)
    background = fit_whitening(means / np.linalg.norm(means, axis=1, keepdims=True))
    draft = draft or open_draft()
    card = draft.card.model_copy(
        update={"background": BackgroundPhotos(dataset="made", images=MIN_PHOTOS)}
    )
    return write_draft(parent, replace(draft, card=card, background=background.to_bytes()))


def blank_labels(count: int) -> LabelVectors:
    """Returns vectors of open labels, for warm-ups."""
    return LabelVectors(np.zeros((count, QUERY_WIDTH), np.float32))


def mapped_graphs() -> Graphs:
    """Returns the graphs of a model with both heads and their maps."""
    return {
        **open_graphs(),
        "trained_head": {"fp32": add_memory(tiny_head())},
        "trained_head_maps": {"fp32": tiny_trained_maps()},
        "open_head": {"fp32": add_memory(tiny_open_head())},
        "open_head_maps": {"fp32": tiny_open_maps()},
    }


def write_mapped_bundle(parent: Path, graphs: Graphs | None = None) -> Bundle:
    """Writes a tiny bundle with both heads and their maps into `parent`."""
    draft = open_draft(open_card("tiny-maps"))
    return write_draft(parent, replace(draft, graphs=graphs or mapped_graphs()))


def random_images(seed: int, count: int) -> PixelArray:
    """Returns images uint8 [count, SIDE, SIDE, 3] as the encoder takes them."""
    return np.random.default_rng(seed).integers(0, 256, (count, SIDE, SIDE, 3), np.uint8)


def random_queries(seed: int, count: int) -> QueryArray:
    """Returns label queries float32 [count, QUERY_WIDTH] as the open head takes them."""
    return np.random.default_rng(seed).normal(size=(count, QUERY_WIDTH)).astype(np.float32)


def random_label_set(seed: int, names: Sequence[str]) -> LabelSet:
    """Returns a set of open labels with `random_queries`, named after the seed."""
    queries = random_queries(seed, len(names))
    nothing = (None,) * len(names)
    definition = Definition(f"set{seed}", tuple(names), nothing, nothing)
    return make_open_set(
        definition,
        LabelVectors(queries),
        OPEN_HEAD.model_copy(update={"threshold": 0.5}),
        version="1",
        origin="store",
    )


def tiny_draft(
    card: ModelCard | None = None,
    labels: Sequence[Label] = TINY_LABELS,
    graphs: Graphs | None = None,
) -> BundleDraft:
    """Returns the draft of a bundle with a trained head alone."""
    return BundleDraft(card=card or tiny_card(), labels=labels, graphs=graphs or tiny_graphs())


def write_tiny_bundle(parent: Path, *parts: Any, **others: Any) -> Bundle:
    """Writes the bundle of a `tiny_draft` into `parent`, under its model's name."""
    return write_draft(parent, tiny_draft(*parts, **others))


def write_categorised_bundle(parent: Path) -> Bundle:
    """Writes a tiny bundle whose labels but `tree` have categories; `dog` and `person` rate."""
    categories = {"cat": "general", "dog": "rating", "car": "vehicle", "person": "rating"}
    labels = [
        label.model_copy(update={"category": categories.get(label.name)}) for label in TINY_LABELS
    ]
    return write_tiny_bundle(parent, tiny_card("tiny-tags"), labels)


def copy_bundle(bundle: Bundle, folder: Path) -> Path:
    """Returns the path of a copy of a bundle in `folder`."""
    return Path(shutil.copytree(bundle.path, folder / bundle.path.name))


def edit_manifest(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Has `edit` change the manifest of the bundle at `path`."""
    file = path / "manifest.json"
    manifest = json.loads(file.read_text())
    edit(manifest)
    file.write_text(json.dumps(manifest))


def run_bundle(
    bundle: Bundle, pixels: NDArray[Any], embeddings: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Returns logits [B, N] of pixels uint8 [B, H, W, 3]; with embeddings [L, E], [B, L]."""
    tokens = _run_graph(bundle, "encoder", images=pixels)
    if embeddings is None:
        return _run_graph(bundle, "trained_head", tokens=tokens)
    queries = _run_graph(bundle, "label_encoder", embeddings=embeddings)
    return _run_graph(bundle, "open_head", tokens=tokens, queries=queries)


def _run_graph(bundle: Bundle, graph: GraphName, **inputs: NDArray[Any]) -> NDArray[Any]:
    session = ort.InferenceSession(
        bundle.read_graph(graph, "fp32"), providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, inputs)[0])
