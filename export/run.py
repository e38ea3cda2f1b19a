"""The parsed options of `python -m export` become the requests of its parts."""

from __future__ import annotations

import argparse
from pathlib import Path

from export.build import ExportRequest, build_bundle
from export.calibration.bundle import RecalibrationRequest, recalibrate_bundle
from export.calibration.heads import CalibrationOptions
from export.sources.open import OpenRequest, read_label_set
from export.triton.repository import check_places, write_repository
from models.checkpoints.description import read_hints
from service.bundle.reader import Bundle, load_bundle
from service.labels.files import read_bundle_sets


def run_export(given: argparse.Namespace, left_out: set[Path]) -> None:
    """Exports, and writes a Triton repository if it is wanted.

    Adds the photos that cannot be used to `left_out`. Raises ExportError, RequestError,
    BundleError or OSError.
    """
    bundle = _find_bundle(given, left_out)
    if given.triton is not None:
        write_repository(given.triton, bundle, given.triton_precision)


def _find_bundle(given: argparse.Namespace, left_out: set[Path]) -> Bundle:
    if given.out is None:
        return load_bundle(given.bundle)
    if given.triton is not None:
        sets = (
            [read_label_set(path).name for path in given.label_set]
            if given.bundle is None
            else [each.name for each in read_bundle_sets(load_bundle(given.bundle))]
        )
        check_places(given.triton, given.out, given.out.name, sets)
    if given.bundle is None:
        return build_bundle(_to_request(given), left_out)
    request = RecalibrationRequest(
        bundle=given.bundle,
        out=given.out,
        photos=given.photos,
        open_photos=given.open_photos,
        open_split=given.open_split,
        model_version=given.model_version,
        rules=_to_rules(given),
    )
    return recalibrate_bundle(request, left_out)


def _to_request(given: argparse.Namespace) -> ExportRequest:
    return ExportRequest(
        checkpoint=given.checkpoint,
        out=given.out,
        photos=given.photos,
        precisions=frozenset(given.precision),
        hints=read_hints(given),
        label_names=given.label_names,
        label_thresholds=given.label_thresholds,
        compact_weights=given.compact_weights,
        model_version=given.model_version or "1",
        license=given.license,
        training_data=given.training_data,
        opened=_to_open_request(given),
        rules=_to_rules(given),
    )


def _to_rules(given: argparse.Namespace) -> CalibrationOptions:
    return CalibrationOptions(raw_scores=given.raw_scores, precision_target=given.precision_target)


def _to_open_request(given: argparse.Namespace) -> OpenRequest | None:
    if given.open_head is None and given.open_photos is None and not given.label_set:
        return None
    return OpenRequest(
        checkpoint=given.open_head,
        text_encoder=given.text_encoder,
        label_sets=tuple(given.label_set),
        photos=given.open_photos,
        split=given.open_split,
    )
