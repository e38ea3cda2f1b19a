"""From published towers to a bundle: download, graphs, comparison, label set, background."""

import logging
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from huggingface_hub import constants
from numpy.typing import NDArray
from pydantic import BaseModel
from tokenizers import Tokenizer

from export import ExportError
from export.accuracy import finish_bundle
from export.calibration.background import add_background, read_background_photos
from export.graphs.graph import FloatArray, open_session
from export.graphs.optimise import compact_weights
from export.sources.label_sets import EVERYDAY, embed_label_set, read_label_set
from export.sources.labelled_photos import PhotoReader
from export.towers.graphs import (
    OUTPUTS,
    Kind,
    find_kind,
    find_sizes,
    make_heads,
    wrap_images,
    wrap_texts,
)
from export.towers.source import (
    CONFIG,
    PREPARATION,
    TOKENIZER,
    Repository,
    TowerFile,
    find_repository,
    look_up,
    read_logits,
)
from models.checkpoints.formats import is_on_hub
from models.checkpoints.hub import fetch_needed
from models.checkpoints.processors import read_processor
from models.checkpoints.tokenizers import TEMPLATES, read_tokenizer
from models.commands import RequestError
from service.bundle.card import (
    EmbeddingSpace,
    InputContract,
    ModelCard,
    OpenHead,
    Precision,
    Provenance,
)
from service.bundle.reader import Bundle
from service.bundle.writer import BundleDraft, check_target
from service.engine.sessions import first_line, return_memory
from service.images.folders import list_photos
from service.labels.encoders import TextEncoder
from service.labels.files import pack_label_set
from service.labels.whitening import MIN_PHOTOS

_MAX_TOKENS = 64  # of a text, if config.json does not say
_LARGEST = 2_000_000_000  # bytes of weights; an ONNX file has less than 2^31
_TOLERANCE = 1e-4  # largest difference of a component from the published graph's, in fp32
_CLOSE = 0.99  # smallest cosine with it, in other precisions
_SAMPLES = Path(__file__).parents[2] / "service" / "http" / "page" / "samples"
_TEXTS = ("dog", "a photo of a fire hydrant.", "ein Kuchen mit Kerzen", "a b c d e f g h i j k l")
_TYPES = {"float": np.float32, "float16": np.float16, "int64": np.int64, "int32": np.int32}

logger = logging.getLogger(__name__)


class TowersRequest(BaseModel):
    """The options of `ml-decoder get`."""

    place: str  # a folder, or `hf-hub:owner/name`
    hub: str  # the repository's name, whichever place has the files
    origin: str | None  # the repository of the weights that the graphs were made from
    license: str
    out: Path
    precision: Precision
    text_precision: Precision
    background: Path | None
    logit_scale: float | None
    logit_bias: float | None


def build_bundle(request: TowersRequest, left_out: set[Path]) -> Bundle:
    """Downloads what is missing and writes a bundle; writes nothing if a step fails.

    Adds photos that cannot be used to `left_out`. Raises a RequestError or BundleError, in one
    line; OSError for a folder that cannot be read.
    """
    check_target(request.out)
    if (folder := request.background) and len(list_photos(str(folder))[0]) < MIN_PHOTOS:
        raise ExportError(f"--background needs at least {MIN_PHOTOS} photos in {folder}")
    files = find_repository(request.place, request.precision, request.text_precision)
    _check_disk(files, request.out)
    config = files.read_json(CONFIG)
    kind = _find_kind(files, config)
    logits = read_logits(
        *(request.place, request.origin),
        biased=kind == "siglip",
        scale=request.logit_scale,
        bias=request.logit_bias,
    )
    logger.info("logits: %.6g times the cosine, %+.6g", *logits)
    cache = constants.HF_HUB_CACHE if is_on_hub(request.place) else None
    with tempfile.TemporaryDirectory(dir=cache) as links:
        with _explain(files.vision):
            encoder, contract, width = _build_images(files, kind, Path(links))
        photos = read_background_photos(folder, PhotoReader(contract, left_out)) if folder else None
        with _explain(files.text):
            texts, tokenizer = _build_texts(files, kind, Path(links), _find_limit(config), width)
    name = request.origin or request.hub
    space = EmbeddingSpace(encoder=name, width=width, template=TEMPLATES[kind])
    everyday = read_label_set(EVERYDAY, space)
    logger.info("encoding the %d names of %s", len(everyday.names), everyday.name)
    rules = Tokenizer.from_buffer(tokenizer)
    return_memory()
    encoder_of_texts = TextEncoder(open_session(texts), rules, width)
    everyday = embed_label_set(everyday, space, encoder_of_texts.encode)
    del encoder_of_texts  # before the bundle is verified: memory
    card = ModelCard(
        name=request.out.name,
        version="1",
        license=request.license,
        provenance=Provenance(
            backbone=name,
            checkpoint_sha256=files.hashes[files.vision.name],
            training_data=request.hub,
            tools={tool: version(tool) for tool in ("onnx", "onnxruntime", "tokenizers")},
            revision=files.find_revision(),
            files=files.hashes,
        ),
        input=contract,
        open_head=OpenHead(
            kind=kind,
            activation="softmax" if kind == "clip" else "sigmoid",
            embedding_space=space,
        ),
    )
    heads = make_heads(width, *logits)
    draft = BundleDraft(
        card=card,
        graphs={
            "encoder": {files.vision.precision: encoder},
            "text_encoder": {"int8" if files.text.precision == "int8" else "fp32": texts},
            **{name: {"fp32": model.SerializeToString()} for name, model in heads.items()},
        },
        tokenizer=tokenizer,
        label_sets={f"{everyday.name}.npz": pack_label_set(everyday)},
    )
    return finish_bundle(request.out, add_background(draft, photos))


def _check_disk(files: Repository, out: Path) -> None:
    """Logs what the download and the bundle take. Raises ExportError if a disk is too small."""
    whole = sum(remote.size for remote in files.remotes.values())
    missing = sum(remote.size for remote in files.remotes.values() if not remote.cached)
    logger.info("%s: %s, %s", files.place, files.vision.name, files.text.name)
    logger.info("download %.0f MB, bundle %s about %.0f MB", missing / 1e6, out, whole / 1e6)
    needed: dict[int, int] = {}  # by device
    for path, size in ((Path(constants.HF_HUB_CACHE), missing), (out.absolute(), whole)):
        folder = next(each for each in (path, *path.parents) if each.exists())
        device = folder.stat().st_dev
        needed[device] = needed.get(device, 0) + size
        if needed[device] > (free := shutil.disk_usage(folder).free):
            raise ExportError(
                f"disk: {folder} has {free / 1e6:,.0f} MB free, and this takes "
                f"{needed[device] / 1e6:,.0f}"
            )


def _find_kind(files: Repository, config: Mapping[str, Any]) -> Kind:
    written = config.get("model_type")
    if written is None:
        return find_kind(onnx.load(files.read(files.vision.name), load_external_data=False))
    if str(written) not in OUTPUTS:
        raise ExportError(f"{files.place} is a model of type {written!r:.40}, not clip or siglip")
    kind: Kind = written
    return kind


def _find_limit(config: Mapping[str, Any]) -> int:
    """Returns the most tokens of a text."""
    texts = config.get("text_config")
    limit = texts.get("max_position_embeddings") if isinstance(texts, dict) else None
    return limit if isinstance(limit, int) and limit > 1 else _MAX_TOKENS


@contextmanager
def _explain(tower: TowerFile) -> Iterator[None]:
    try:
        yield
    except (RequestError, OSError):
        raise
    except Exception as error:  # ONNX Runtime's exceptions have no common base, nor protobuf's
        raise ExportError(f"{tower.name} cannot be used: {first_line(error)}") from error


def _build_images(files: Repository, kind: Kind, links: Path) -> tuple[bytes, InputContract, int]:
    """Returns the encoder, the preparation of photos, and the width E of embeddings."""
    path = files.open_graph(files.vision, links)
    model = onnx.load(path)
    height, width = find_sizes(model, "pixel_values")[2:]
    if height != width:
        raise ExportError(f"{files.vision.name} takes photos of {width} x {height}, not squares")
    spec = read_processor(files.read_json(PREPARATION), kind, height or None)
    wrap_images(model, kind, spec)
    graph = _serialize(model)
    del model
    contract = InputContract.model_validate(spec.model_dump())
    reader, session = PhotoReader(contract), open_session(graph)
    photos = [reader.read(photo)[np.newaxis] for photo in sorted(_SAMPLES.glob("*.jpg"))]
    tokens = np.concatenate([session.run(["tokens"], {"images": p})[0][:, 0] for p in photos])
    values = [(photo / 255 - spec.mean) / spec.std for photo in photos]
    del session
    rows = [value.transpose(0, 3, 1, 2) for value in values]
    _Published(files, files.vision, kind, path).compare(rows, tokens)
    return_memory()
    return graph, contract, tokens.shape[1]


def _build_texts(
    files: Repository, kind: Kind, links: Path, limit: int, width: int
) -> tuple[bytes, bytes]:
    """Returns the text encoder and its tokenizer."""
    path = files.open_graph(files.text, links)
    model = onnx.load(path)
    fixed = find_sizes(model, "input_ids")[1]
    files.read(TOKENIZER)
    tokenizer, pad, size = read_tokenizer(files.place, kind, fixed or limit)
    length = fixed or (limit if kind == "siglip" else 0)
    wrap_texts(model, kind, pad, length)
    graph = _serialize(model)
    del model
    rules = Tokenizer.from_buffer(tokenizer)
    return_memory()  # 300 MB of a large vocabulary
    session = open_session(graph)
    ends = np.array([[size - 1]])  # fails if the tower knows fewer tokens
    session.run(["embeddings"], {"input_ids": ends, "attention_mask": np.ones_like(ends)})
    embeddings = TextEncoder(session, rules, width).encode(_TEXTS)
    del session
    if length:
        rules.enable_padding(length=length, pad_id=pad)
    ids = [np.array([encoding.ids]) for encoding in rules.encode_batch(list(_TEXTS))]
    _Published(files, files.text, kind, path).compare(ids, embeddings)
    return graph, tokenizer


def _serialize(model: onnx.ModelProto) -> bytes:
    """Returns the file; weights of more than 2 GB are stored in 16 bits."""
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) > _LARGEST:
        model = compact_weights(model)
    return model.SerializeToString()


@dataclass(frozen=True)
class _Published:
    """A graph as it was published; `rows` are pixel values or token ids, run one by one."""

    files: Repository
    tower: TowerFile
    kind: Kind
    path: Path

    def compare(self, rows: Sequence[NDArray[Any]], actual: FloatArray) -> None:
        """Compares embeddings [n, E] with those of the file, and of fp32 if it is here."""
        name, expected = self.tower.name, self._embed(self.path, rows)
        worst, cosine = np.abs(actual - expected).max(), (actual * expected).sum(axis=1).min()
        if not (worst <= _TOLERANCE if self.tower.precision == "fp32" else cosine >= _CLOSE):
            raise ExportError(f"{name}: embeddings deviate by {worst:.1e} from the file's own")
        logger.info("%s: embeddings equal the file's own within %.1e", name, worst)
        plain = f"{name.partition('_model')[0]}_model.onnx"
        remote = look_up(self.files.place, plain) if plain != name else None
        if remote is not None and remote.cached:
            exact = self._embed(fetch_needed(self.files.place, plain), rows)
            cosine = (actual * exact).sum(axis=1).min()
            logger.info("%s: cosines of %.3f or more with fp32", name, cosine)
        elif plain != name:
            logger.info("%s was not compared with fp32, which is not here", name)

    def _embed(self, path: Path, rows: Sequence[NDArray[Any]]) -> FloatArray:
        """Returns embeddings [n, E] of length 1."""
        session = open_session(str(path))
        names = [output.name for output in session.get_outputs()]
        wanted = next(name for name in OUTPUTS[self.kind] if name in names)
        pooled = []
        for row in rows:
            ones = np.ones_like(row)  # the mask
            feeds = {
                each.name: (ones if each.name == "attention_mask" else row).astype(
                    _TYPES[each.type[7:-1]]
                )
                for each in session.get_inputs()
            }
            pooled.append(session.run([wanted], feeds)[0].astype(np.float32))
        embeddings = np.concatenate(pooled)
        return np.asarray(embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True))
