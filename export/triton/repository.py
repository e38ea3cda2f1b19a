"""A bundle becomes a model repository of NVIDIA Triton: `--triton DIR`, one folder a model.

    <name>_encoder         images uint8 [H, W, 3] -> tokens float [S, C]
    <name>_trained         tokens -> scores float [N] of the trained labels
    <name>_set_<set>       tokens -> scores float [L] of a ready label set of the bundle
    <name>                 the ensemble: images -> `scores`, `scores_<set>`, ...

Calibrations and activations are inside the heads, and the label queries of a set are constants of
its head: Triton cannot register labels at runtime.
"""

import asyncio
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from export import ExportError
from export.accuracy import read_graphs
from export.triton.config import Tensor, make_step, write_ensemble_config, write_model_config
from service.bundle.card import Activation, Precision
from service.bundle.reader import Bundle
from service.engine.heads import LabelVectors
from service.errors import ServiceError
from service.labels.definition import Definition, check_fit
from service.labels.encoders import LabelEncoders, open_label_encoders
from service.labels.files import read_bundle_sets
from service.labels.label_set import LabelSet, make_trained_set

CONFIG_FILE = "config.pbtxt"
LABELS_FILE = "labels.txt"
_STEP = re.compile(r'\bmodel_name\s*:\s*"([^"]+)"')  # of an ensemble's configuration
_ACTIVATIONS: dict[Activation, str] = {"sigmoid": "Sigmoid", "softmax": "Softmax"}
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Head:
    model: str  # its name in the repository
    output: str  # the ensemble's name for its scores
    labels: tuple[str, ...]  # a name for each score
    graph: onnx.ModelProto  # tokens [B, S, C] -> scores [B, L]


def write_repository(folder: Path, bundle: Bundle, precision: Precision = "fp32") -> None:
    """Writes the models of a bundle into a repository; replaces its models of the same names only.

    A head without a variant of this precision is written in fp32. Raises BundleError if the encoder
    has no such variant, ExportError if there is no label to score, if a label set cannot be encoded
    or if names collide (`check_places`). Nothing was removed then.
    """
    sets = [each.name for each in read_bundle_sets(bundle)]
    check_places(folder, bundle.path, bundle.card.name, sets)
    encoder = onnx.load_from_string(bundle.read_graph("encoder", precision))
    heads = [*_take_trained_head(bundle, precision), *_take_label_sets(bundle, precision)]
    if not heads:
        raise ExportError(f"bundle {bundle.card.name} has no labels whose scores Triton could give")
    if precision == "int8":  # Triton's backend cannot set `session.x64quantprecision`
        logger.warning("in Triton, int8 saturates on x86 processors without VNNI: take fp32 there")
    folder.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=folder))
    try:
        _write_models(staging, bundle, encoder, heads)
        for model in sorted(staging.iterdir()):
            shutil.rmtree(folder / model.name, ignore_errors=True)
            os.replace(model, folder / model.name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    logger.info("wrote %d Triton models to %s", len(heads) + 2, folder)


def check_places(folder: Path, bundle: Path, name: str, label_sets: Iterable[str]) -> None:
    """Compares the names of a bundle's models with what is in a repository; reads no bundle.

    Raises ExportError with all that collide: the bundle's own folder, a folder that is not a Triton
    model, and models of other bundles.
    """
    models = [name, *(f"{name}_{part}" for part in ("encoder", "trained"))]
    models += [f"{name}_set_{each}" for each in label_sets]
    owners: dict[str, str] = {}  # the ensemble of each model of other ensembles, and of these
    for config in folder.glob(f"*/{CONFIG_FILE}"):
        ensemble, steps = config.parent.name, _STEP.findall(config.read_text(errors="replace"))
        if steps and ensemble != name:
            owners |= dict.fromkeys([ensemble, *steps], ensemble)
    problems = []
    for place in (folder / model for model in models):
        if bundle.resolve().is_relative_to(place.resolve()):
            problems.append(
                f"the bundle {bundle} is in the folder of the Triton model {place.name}"
            )
        elif os.path.lexists(place) and not (place / CONFIG_FILE).is_file():
            problems.append(f"{place} exists and is not a Triton model")
        elif place.name in owners:
            problems.append(
                f"{place} is a model of {owners[place.name]}: rename one of the bundles"
            )
    if problems:
        raise ExportError("; ".join(problems))


def _write_models(
    folder: Path, bundle: Bundle, encoder: onnx.ModelProto, heads: Sequence[_Head]
) -> None:
    name, contract = bundle.card.name, bundle.card.input
    images = Tensor("images", "TYPE_UINT8", contract.shape)
    sizes = encoder.graph.output[0].type.tensor_type.shape.dim[1:]  # without the batch axis
    shape = tuple(size.dim_value if size.HasField("dim_value") else -1 for size in sizes)
    tokens = Tensor("tokens", "TYPE_FP32", shape)
    config = write_model_config(f"{name}_encoder", images, tokens, queue=True)
    _write_model(folder / f"{name}_encoder", config, encoder)
    steps = [make_step(f"{name}_encoder", {"images": "images"}, {"tokens": "tokens"})]
    outputs = []
    (folder / name / "1").mkdir(parents=True)  # Triton requires an empty version folder
    for head in heads:
        labels, own = "".join(f"{label}\n" for label in head.labels), f"{head.output}.{LABELS_FILE}"
        scores = Tensor("scores", "TYPE_FP32", (len(head.labels),), LABELS_FILE)
        config = write_model_config(head.model, tokens, scores, queue=False)
        _write_model(folder / head.model, config, head.graph)
        steps.append(make_step(head.model, {"tokens": "tokens"}, {"scores": head.output}))
        outputs.append(replace(scores, name=head.output, labels_file=own))
        for path in (folder / head.model / LABELS_FILE, folder / name / own):
            path.write_text(labels, encoding="utf-8")
    (folder / name / CONFIG_FILE).write_text(write_ensemble_config(name, images, outputs, steps))


def _write_model(folder: Path, config: str, graph: onnx.ModelProto) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / CONFIG_FILE).write_text(config)
    (folder / "1" / "model.onnx").write_bytes(graph.SerializeToString())


def _take_trained_head(bundle: Bundle, precision: Precision) -> list[_Head]:
    head = bundle.card.trained_head
    if head is None:
        return []
    graph = read_graphs(bundle, ("trained_head",), precision)["trained_head"]
    labels = make_trained_set(bundle.labels, head)
    return [_Head(f"{bundle.card.name}_trained", "scores", labels.names, _score(graph, labels))]


def _take_label_sets(bundle: Bundle, precision: Precision) -> list[_Head]:
    chosen = {each: _find_places(each, bundle) for each in read_bundle_sets(bundle)}
    encoders = open_label_encoders(
        bundle, threads=os.cpu_count() or 1, cache_size=0, queue_size=len(chosen) + 1
    )
    if encoders is None:
        return []
    heads = []
    with closing(encoders):
        for definition, places in chosen.items():
            if not places:
                continue
            graph = read_graphs(bundle, ("open_head",), precision)["open_head"]
            vectors = _encode(definition, encoders)
            inputs = [value for value in graph.graph.input if value.name != "queries"]
            del graph.graph.input[:]
            graph.graph.input.extend(inputs)
            queries = numpy_helper.from_array(vectors.queries[places], "queries")
            graph.graph.initializer.append(queries)
            labels = encoders.make_set(definition, vectors, bundle.card.version, "bundle")
            names = tuple(labels.names[place] for place in places)
            pairs = None if labels.calibration is None else labels.calibration[:, places]
            labels = replace(labels, names=names, calibration=pairs)
            model, output = f"{bundle.card.name}_set_{definition.name}", f"scores_{definition.name}"
            heads.append(_Head(model, output, labels.names, _score(graph, labels)))
    return heads


def _find_places(definition: Definition, bundle: Bundle) -> list[int]:
    """Returns the places of labels that their texts alone score; logs the names of the others."""
    learnt = definition.examples if definition.encoder == bundle.photo_fingerprint else {}
    if learnt:
        logger.warning(
            "label set %s: left out of Triton, since they learnt from photos: %s",
            *(definition.name, ", ".join(learnt)),
        )
    return [place for place, name in enumerate(definition.names) if name not in learnt]


def _encode(definition: Definition, encoders: LabelEncoders) -> LabelVectors:
    async def encode() -> LabelVectors:
        return await encoders.project(await encoders.embed(definition))

    try:
        check_fit(definition, encoders.head.embedding_space, encodes_text=encoders.encodes_text)
        return asyncio.run(encode())
    except ServiceError as error:
        raise ExportError(f"label set {definition.name} cannot be encoded") from error


def _score(graph: onnx.ModelProto, labels: LabelSet) -> onnx.ModelProto:
    """Ends a head's graph in the `scores` [B, L] of a set, 0..1, instead of `logits`."""
    last = "logits"
    if labels.calibration is not None:
        scale, shift = labels.calibration.astype(np.float32)
        graph.graph.initializer.append(numpy_helper.from_array(scale, "calibration_scale"))
        graph.graph.initializer.append(numpy_helper.from_array(shift, "calibration_shift"))
        last = "calibration_shifted"
        graph.graph.node.extend(
            [
                helper.make_node("Mul", ["logits", "calibration_scale"], ["calibration_scaled"]),
                helper.make_node("Add", ["calibration_scaled", "calibration_shift"], [last]),
            ]
        )
    graph.graph.node.append(
        helper.make_node(_ACTIVATIONS[labels.activation], [last], ["scores"], name="scores")
    )
    del graph.graph.output[:]
    graph.graph.output.append(
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["B", len(labels.names)])
    )
    onnx.checker.check_model(graph)
    return graph
