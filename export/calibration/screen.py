"""Fits the screen of an open head to photos and nouns, and measures its recall on others."""

import logging
import math
from dataclasses import replace

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor

from export.graphs.graph import EmbedTexts, FloatArray, Graphs, open_session
from export.graphs.optimise import compact_weights, optimise
from export.graphs.trace import trace_label_encoder, trace_screened_head
from export.graphs.verify import FP32_TOLERANCE, VerificationError
from export.sources.label_sets import embed_names
from export.sources.labelled_photos import LabelledPhotos, Splits
from models.heads.maps import find_grid
from models.heads.screen import FIRST, SECOND, Screen
from models.heads.zero_shot import ZeroShotMLDecoder
from models.timm_model import read_class_names
from service.bundle import card
from service.bundle.manifest import GraphName
from service.bundle.writer import BundleDraft
from service.engine.heads import LABELS_PER_RUN

_NOUNS = "imagenet22k"  # timm's list of WordNet's nouns (WordNet 3.0 licence)
_PHOTOS = 128  # to fit to, and to measure on
_BEST = 20
_WANTED_RECALL = 0.9995  # of the 20 best while fitting: other photos and names lose a little
_BELOW = -30.0  # a shift with which no label counts for its rank alone
_FACTORS = tuple(1.25**step for step in range(-3, 8))  # of the labels that the stages keep

logger = logging.getLogger(__name__)


def read_nouns() -> tuple[str, ...]:
    """Returns about 20,000 plain nouns."""
    return tuple(dict.fromkeys(read_class_names(_NOUNS)))


def add_screen(  # noqa: PLR0913 - the parts of a bundle
    draft: BundleDraft,
    head: ZeroShotMLDecoder,
    graphs: Graphs,
    splits: Splits,
    embed: EmbedTexts,
    *,
    compact: bool,
) -> BundleDraft:
    """Adds a screen to a draft that has a calibrated open head; `graphs` are those of a CPU.

    It is fitted to training photos and half of the nouns, and measured on test photos and the other
    half. There is none if the tokens are no grid, or if it would find too few of the best labels.
    """
    opened, contract = draft.card.open_head, draft.card.input
    assert opened is not None
    fitted, others = (_encode(graphs, photos) for photos in (splits.train, splits.test))
    grid = find_grid(fitted.shape[1], contract.height, contract.width)
    if grid is None:
        logger.info("screen: none, the tokens are no grid")
        return draft
    nouns = embed_names(read_nouns(), opened.embedding_space.template, embed)
    screen = fit_screen(head, grid, torch.from_numpy(fitted), torch.from_numpy(nouns[::2]))
    if screen is None:
        logger.info("screen: none finds %.2f %% of the %d best labels", 100 * _WANTED_RECALL, _BEST)
        return draft
    made: dict[GraphName, onnx.ModelProto] = {
        "label_encoder": optimise(trace_label_encoder(screen)),
        "screened_head": optimise(trace_screened_head(screen)),
    }
    if compact:
        made = {name: compact_weights(model) for name, model in made.items()}
    for model in made.values():
        model.metadata_props.extend(graphs["open_head"].metadata_props)
    measured = measure_screen({**graphs, **made}, opened, others, nouns[1::2], splits.test.dataset)
    logger.info(
        "screen: scores %.0f of %d labels and finds %.2f %% of the %d best, %.2f %% of those above "
        "their thresholds, on %d photos of %s",
        *(measured.scored, measured.names, 100 * measured.best_found, _BEST),
        *(100 * measured.above_found, measured.images, measured.dataset),
    )
    opened = opened.model_copy(update={"screen": measured})
    return replace(
        draft,
        card=draft.card.model_copy(update={"open_head": opened}),
        graphs={
            **draft.graphs,
            **{name: {"fp32": model.SerializeToString()} for name, model in made.items()},
        },
    )


def _encode(graphs: Graphs, photos: LabelledPhotos) -> FloatArray:
    session = open_session(graphs["encoder"])
    batches = photos.sample(_PHOTOS).read_batches()
    return np.concatenate([session.run(["tokens"], {"images": batch})[0] for batch in batches])


@torch.no_grad()
def fit_screen(
    head: ZeroShotMLDecoder, grid: tuple[int, int], tokens: Tensor, embeddings: Tensor
) -> Screen | None:
    """Returns the cheapest screen that finds enough labels [L, E] on tokens [n, S, C], or None."""
    queries = torch.cat([head.encode_labels(some) for some in embeddings.split(LABELS_PER_RUN)])
    best = [
        torch.cat([head.score(photo, some) for some in queries.split(LABELS_PER_RUN)], dim=1)
        .topk(_BEST)
        .indices
        for photo in tokens.split(1)
    ]
    for factor in _FACTORS:
        first, second = (stage._replace(factor=factor * stage.factor) for stage in (FIRST, SECOND))
        screen = Screen(head, grid, first, second).eval()
        screen.center(tokens)
        keys = screen.describe(queries)
        scale, wanted = torch.ones(len(queries)), torch.tensor([_BEST])
        hits = [
            np.isin(indices, screen(photo, queries, scale, scale * _BELOW, wanted, **keys)[1])
            for photo, indices in zip(tokens.split(1), best, strict=True)
        ]
        recall = float(np.mean(hits))
        logger.info("screen: factor %.2f finds %.3f %% of the best", factor, 100 * recall)
        if recall >= _WANTED_RECALL:
            return screen
    return None


def measure_screen(
    graphs: Graphs, head: card.OpenHead, tokens: FloatArray, embeddings: FloatArray, dataset: str
) -> card.Screen:
    """Compares a screen with the open head, on tokens [n, S, C] and names [L, E].

    Raises VerificationError if the screened head gives another logit than the open head.
    """
    encoder, full, screened = (
        open_session(graphs[name]) for name in ("label_encoder", "open_head", "screened_head")
    )
    outputs = [output.name for output in encoder.get_outputs()]
    labels = dict(zip(outputs, encoder.run(outputs, {"embeddings": embeddings}), strict=True))
    chunks = np.array_split(labels["queries"], math.ceil(len(embeddings) / LABELS_PER_RUN))
    fit = head.calibration or card.Calibration(scale=1.0, shift=0.0)
    floor = math.log(head.threshold) - math.log1p(-head.threshold)

    def keep(photo: FloatArray, scale: float, shift: float) -> list[NDArray[np.generic]]:
        feeds = {"tokens": photo, "wanted": np.array([_BEST]), **labels}
        ranks = (np.full(len(embeddings), x, np.float32) for x in (scale, shift))
        feeds |= zip(("scale", "shift"), ranks, strict=True)
        logits, positions = screened.run(["logits", "positions"], feeds)
        return [logits[0], positions[0]]

    best_found, above_found, scored, worst = [], [], [], 0.0
    for photo in np.split(tokens, len(tokens)):
        runs = [full.run(["logits"], {"tokens": photo, "queries": some})[0][0] for some in chunks]
        wanted = np.concatenate(runs)
        logits, positions = keep(photo, 1.0, _BELOW)
        deviation = np.abs(logits - wanted[positions]).max() / np.abs(wanted).max()
        worst = max(worst, float(deviation))
        scored.append(len(positions))
        best_found.append(np.isin(wanted.argsort()[-_BEST:], positions))
        _, positions = keep(photo, fit.scale, fit.shift - floor)
        above = np.flatnonzero(fit.scale * wanted + fit.shift >= floor)
        above_found.append(np.isin(above, positions))
    if not worst <= FP32_TOLERANCE:
        raise VerificationError(
            f"logits of the screened head deviate by {worst:.1e} of the largest"
        )
    above_all = np.concatenate(above_found)
    return card.Screen(
        dataset=dataset,
        images=len(tokens),
        names=len(embeddings),
        scored=float(np.mean(scored)),
        best_found=float(np.mean(best_found)),
        above_found=float(above_all.mean()) if len(above_all) else 1.0,
    )
