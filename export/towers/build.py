"""From published towers to a bundle: download, graphs, comparison, label set, background."""

import logging
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
from huggingface_hub import constants
from numpy.typing import NDArray
from pydantic import BaseModel, TypeAdapter, ValidationError
from tokenizers import Tokenizer

from export import ExportError
from export.accuracy import finish_bundle
from export.calibration.background import add_background, read_background_photos
from export.graphs.graph import FloatArray, open_session
from export.graphs.optimise import LARGEST, compact_weights
from export.sources.label_sets import (
    EVERYDAY,
    EVERYDAY_WORDS,
    embed_label_set,
    read_label_set,
    read_words,
)
from export.sources.labelled_photos import PhotoReader
from export.towers.graphs import find_embedding, find_sizes, make_heads, wrap_images, wrap_texts
from export.towers.source import PREPARATION, Repository, Tower, read_logits
from models.checkpoints.formats import is_on_hub
from models.checkpoints.hub import CONFIG, fetch_needed, read_json
from models.checkpoints.processors import read_processor
from models.checkpoints.tokenizers import TEMPLATES, read_tokenizer
from models.config import Towers
from service.bundle.card import (
    EmbeddingSpace,
    InputContract,
    ModelCard,
    ModelName,
    OpenHead,
    Precision,
    Provenance,
    format_first_error,
)
from service.bundle.reader import Bundle
from service.bundle.writer import BundleDraft
from service.engine.sessions import return_memory
from service.images.folders import list_photos
from service.labels.definition import check_fit
from service.labels.encoders import TextEncoder
from service.labels.files import pack_label_set
from service.labels.whitening import MIN_PHOTOS

_MAX_TOKENS = 64  # of a text, if config.json does not say
_MOST = 1e6  # of a logit's scale and bias
_TOLERANCE = 1e-4  # largest difference of a component from the published graph's, in fp32
_CLOSE = 0.99  # smallest cosine with it, in other precisions
_SAMPLES = Path(__file__).parents[2] / "service" / "http" / "page" / "samples"
_TEXTS = ("dog", "a photo of a fire hydrant.", "ein Kuchen mit Kerzen", "a b " * 200)  # is cut
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
    text_ap: Precision
    background: Path | None
    logit_scale: float | None
    logit_bias: float | None


def build_bundle(request: TowersRequest, left_out: set[Path]) -> Bundle:
    """Downloads what is missing and writes a bundle; writes nothing if a step fails.

    Adds photos that cannot be used to `left_out`. Raises a RequestError or BundleError, in one
    line; OSError for a folder that cannot be read.
    """
    try:
        TypeAdapter(ModelName).validate_python(request.out.name)
    except ValidationError as error:
        raise ExportError(f"--out: the folder's name {format_first_error(error)}") from error
    if (folder := request.background) and len(list_photos(str(folder))[0]) < MIN_PHOTOS:
        raise ExportError(f"--background needs at least {MIN_PHOTOS} photos in {folder}")
    files = Repository(request.place)
    vision, text = files.find_towers(request.precision, request.text_ap)
    logger.info("%s: %s, %s", request.place, vision.name, text.name)
    _check_disk(files, request.out)
    config = read_json(request.place, CONFIG)
    kind = _find_kind(files, vision, config)
    logits = read_logits(
        *(request.place, request.origin),
        biased=kind == "siglip",
        scale=request.logit_scale,
        bias=request.logit_bias,
    )
    if not (0 < logits.scale < _MOST and abs(logits.bias) < _MOST):
        raise ExportError(f"logits of {logits.scale:g} * cosine {logits.bias:+g} are no scores")
    logger.info("logits: %.6g times the cosine, %+.6g", *logits)
    files.download()
    encoder, contract, width = _build_images(files, vision, kind)
    name = request.origin or request.hub
    space = EmbeddingSpace(encoder=name, width=width, template=TEMPLATES[kind])
    card = ModelCard(
        name=request.out.name,
        version="1",
        license=request.license,
        provenance=Provenance(
            backbone=name,
            checkpoint_sha256=files.hashes[vision.name],
            training_data=request.hub,
            tools={tool: version(tool) for tool in ("onnx", "onnxruntime", "tokenizers")},
            revision=files.home.name if is_on_hub(request.place) else None,
            files=files.hashes,
        ),
        input=contract,
        open_head=OpenHead(
            kind=kind, activation="softmax" if kind == "clip" else "sigmoid", embedding_space=space
        ),
    )
    graphs = {"encoder": {vision.precision: encoder}, **make_heads(width, *logits)}
    draft = BundleDraft(card, graphs=graphs)
    if folder:
        photos = read_background_photos(folder, PhotoReader(contract, left_out))
        draft = add_background(draft, photos)
        del photos  # their pixels, before the text tower is read
    texts, tokenizer, everyday = _build_texts(files, text, kind, _find_limit(config), space)
    text_ap: Precision = "int8" if text.precision == "int8" else "fp32"
    draft = replace(
        draft,
        graphs={**graphs, "text_encoder": {text_ap: texts}},
        tokenizer=tokenizer,
        label_sets={f"{EVERYDAY.stem}.npz": everyday},
        words=read_words(EVERYDAY_WORDS),
    )
    return finish_bundle(request.out, draft)


def _check_disk(files: Repository, out: Path) -> None:
    """Logs what the download and the bundle take. Raises ExportError if a disk is too small."""
    whole = sum(remote.size for remote in files.remotes.values())
    missing = sum(remote.size for remote in files.remotes.values() if not remote.cached)
    logger.info("download %.0f MB, bundle %s about %.0f MB", missing / 1e6, out, whole / 1e6)
    needed = Counter[int]()  # by device
    for path, size in ((Path(constants.HF_HUB_CACHE), missing), (out.absolute(), whole)):
        folder = next(each for each in (path, *path.parents) if each.exists())
        needed[device := folder.stat().st_dev] += size
        if needed[device] > (free := shutil.disk_usage(folder).free):
            raise ExportError(
                f"disk: {folder} has {free / 1e6:,.0f} MB free, and this takes "
                f"{needed[device] / 1e6:,.0f}"
            )


def _find_kind(files: Repository, vision: Tower, config: Mapping[str, Any]) -> Towers:
    kind = config.get("model_type")
    if kind is None:
        graph = onnx.load(fetch_needed(files.place, vision.name), load_external_data=False).graph
        return find_embedding(output.name for output in graph.output)[1]
    if kind not in get_args(Towers):
        raise ExportError(f"{files.place} is a model of type {kind!r:.40}, not clip or siglip")
    return kind


def _build_images(
    files: Repository, tower: Tower, kind: Towers
) -> tuple[bytes, InputContract, int]:
    """Returns the encoder, the preparation of photos, and the width E of embeddings."""
    with files.open_graph(tower) as path:
        model = onnx.load(path)
        _, height, width = find_sizes(model, kind, "pixel_values")
        if height != width:
            raise ValueError(f"it takes photos of {width} x {height}, not squares")
        given = read_json(files.home, PREPARATION)
        if height:  # decides before the file
            given |= {"size": {"height": height, "width": height}, "do_center_crop": False}
        spec = read_processor(given, kind, height or None)
        wrap_images(model, spec)
        graph = _serialize(model)
        del model
        contract = InputContract.model_validate(spec.model_dump())
        reader, session = PhotoReader(contract), open_session(graph)
        photos = [reader.read(photo)[np.newaxis] for photo in sorted(_SAMPLES.glob("*.jpg"))]
        tokens = np.concatenate([session.run(["tokens"], {"images": p})[0][:, 0] for p in photos])
        (together,) = session.run(["tokens"], {"images": np.concatenate(photos)})
        if not (tokens * together[:, 0]).sum(axis=1).min() >= _CLOSE:
            raise ValueError("photos change each other's embeddings")
        del session
        values = [(photo / 255 - spec.mean) / spec.std for photo in photos]
        _compare(files, tower, path, [rows.transpose(0, 3, 1, 2) for rows in values], tokens)
    return_memory()
    return graph, contract, tokens.shape[1]


def _build_texts(
    files: Repository, tower: Tower, kind: Towers, limit: int, space: EmbeddingSpace
) -> tuple[bytes, bytes, bytes]:
    """Returns the text encoder, its tokenizer, and the label set of everyday."""
    with files.open_graph(tower) as path:
        model = onnx.load(path)
        (fixed,) = find_sizes(model, kind, "input_ids")
        limit = fixed or limit
        tokenizer, pad, size = read_tokenizer(files.home, kind, limit)
        return_memory()  # 300 MB of a large vocabulary
        length = limit if fixed or kind == "siglip" else 0
        wrap_texts(model, pad, length)
        graph = _serialize(model)
        del model
        rules = Tokenizer.from_buffer(tokenizer)
        return_memory()
        session = open_session(graph)
        ends = np.array([[size - 1]])  # fails if the tower knows fewer tokens
        session.run(["embeddings"], {"input_ids": ends, "attention_mask": np.ones_like(ends)})
        encoder = TextEncoder(session, rules, space.width)
        embeddings = encoder.encode(_TEXTS)
        everyday = read_label_set(EVERYDAY, space)
        logger.info("encoding the %d names of %s", len(everyday.names), everyday.name)
        everyday = embed_label_set(everyday, space, encoder.encode)
        check_fit(everyday, space, encodes_text=True)
        del encoder, session  # before the file's own is opened: memory
        return_memory()
        if length:
            rules.enable_padding(length=length, pad_id=pad)
        ids = [np.array([encoding.ids]) for encoding in rules.encode_batch(list(_TEXTS))]
        _compare(files, tower, path, ids, embeddings)
    return graph, tokenizer, pack_label_set(everyday)


def _find_limit(config: Mapping[str, Any]) -> int:
    """Returns the most tokens of a text."""
    match config.get("text_config"):
        case {"max_position_embeddings": int(limit)} if limit > 1:
            return limit
    return _MAX_TOKENS


def _serialize(model: onnx.ModelProto) -> bytes:
    """Returns the file; weights of more than 2 GB are stored in 16 bits."""
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) > LARGEST:
        model = compact_weights(model)
    return model.SerializeToString()


def _compare(
    files: Repository, tower: Tower, path: Path, rows: Sequence[NDArray[Any]], actual: FloatArray
) -> None:
    """Compares embeddings [n, E] of `rows` with those of the file, and of fp32 if it is here."""
    expected = _embed(path, rows)
    worst, cosine = np.abs(actual - expected).max(), (actual * expected).sum(axis=1).min()
    if not cosine >= _CLOSE or (tower.precision == "fp32" and worst > _TOLERANCE):
        raise ExportError(f"{tower.name}: embeddings deviate by {worst:.1e} from the file's own")
    logger.info("%s: embeddings equal the file's own within %.1e", tower.name, worst)
    plain = f"{tower.name.partition('_model')[0]}_model.onnx"
    if tower.name != plain and files.has(plain) and files.remotes[plain].cached:
        cosine = (actual * _embed(fetch_needed(files.place, plain), rows)).sum(axis=1).min()
        logger.info("%s: cosines of %.3f or more with fp32", tower.name, cosine)
    elif tower.name != plain:
        logger.info("%s was not compared with fp32, which is not here", tower.name)


def _embed(path: Path, rows: Sequence[NDArray[Any]]) -> FloatArray:
    """Returns embeddings [n, E] of length 1, of pixel values or token ids, run one by one."""
    session, pooled = open_session(str(path)), []
    wanted, _ = find_embedding(output.name for output in session.get_outputs())
    for row in rows:
        known = {"attention_mask": np.ones_like(row)}
        feeds = {
            each.name: known.get(each.name, row).astype(_TYPES[each.type[7:-1]])
            for each in session.get_inputs()
        }
        pooled.append(session.run([wanted], feeds)[0].astype(np.float32))
    embeddings = np.concatenate(pooled)
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    if not (np.isfinite(lengths) & (lengths > 0)).all():
        raise ValueError("it gives embeddings of no length")
    return np.asarray(embeddings / lengths)
