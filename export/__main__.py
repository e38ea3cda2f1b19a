"""`python -m export --checkpoint FILE --out bundles/NAME [--photos FOLDER] ...`.

With `--bundle`, a finished bundle is calibrated again, or gets a background or words. Exits with
0, with 1 if photos were left out, or 2 (not written). The options and the checkpoint's first bytes
are checked before torch is imported, which takes seconds.
"""

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, get_args

from models.checkpoints.description import add_hint_flags
from models.checkpoints.formats import check_checkpoint
from models.commands import RequestError, run_command
from service.bundle.card import Precision
from service.errors import BundleError, escape

_EXIT_SOME_LEFT_OUT = 1
_EXIT_NOT_WRITTEN = 2
# An option -> the option that it needs.
_NEEDS = {"text_encoder": "open_head", "open_split": "open_photos"}
_PHOTOS = frozenset({"photos", "open_photos"})
_ADDED = _PHOTOS | {"background", "words"}
_WITH_BUNDLE = _ADDED | {
    *("bundle", "out", "model_version", "open_split", "raw_scores", "precision_target"),
}
# Flags of 1.0, still parsed so that they are refused with what replaces them.
_REMOVED = ("--triton", "--triton-precision")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exports; returns the exit code."""
    given = _read_arguments(arguments)

    def export(left_out: set[Path]) -> None:
        for checkpoint in filter(None, (given.checkpoint, given.open_head)):
            check_checkpoint(checkpoint)
        if given.bundle is not None:  # this needs no torch
            from export.calibration import bundle

            request = bundle.make_request(bundle.RecalibrationRequest, given)
            bundle.recalibrate_bundle(request, left_out)
        else:
            from export.build import run_export

            run_export(given, left_out)

    return report(export)


def report(work: Callable[[set[Path]], object]) -> int:
    """Does work that logs to stderr and adds photos that cannot be used; returns the exit code."""
    left_out: set[Path] = set()
    handler = logging.StreamHandler(sys.stderr)
    loggers = [logging.getLogger(name) for name in ("export", "models")]
    for logger in loggers:
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
    try:
        work(left_out)
    except (RequestError, BundleError, OSError) as error:
        sys.stderr.write(f"error: {escape(' '.join(str(error).split()))}\n")
        return _EXIT_NOT_WRITTEN
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
    if left_out:
        photos = "photo was" if len(left_out) == 1 else "photos were"
        sys.stderr.write(f"{len(left_out)} {photos} left out\n")
        return _EXIT_SOME_LEFT_OUT
    return 0


def _read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser()
    given = parser.parse_args(arguments)
    if given.precision_target is not None and not 0 <= given.precision_target <= 1:
        parser.error(f"--precision-target must be from 0 to 1; it is {given.precision_target}")
    if given.photos is not None and (given.label_thresholds or given.category_threshold):
        parser.error("--label-thresholds and --category-threshold do not fit --photos, which "
            "choose the thresholds")  # fmt: skip
    _refuse_ignored(parser, given)
    if given.precision is None:
        given.precision = ("fp32", "fp16", "int8") if given.photos else ("fp32", "fp16")
    return given


def _refuse_ignored(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    given_names = {name for name, value in vars(given).items() if value != parser.get_default(name)}
    others = given_names - _WITH_BUNDLE
    if given.bundle is not None and others:
        parser.error(f"{_to_flag(min(others))} needs --checkpoint: it does not fit --bundle")
    if given.bundle is not None and not _ADDED & given_names:
        parser.error("--bundle needs --photos, --open-photos, --background or --words")
    if "precision_target" in given_names and not _PHOTOS & given_names:
        parser.error("--precision-target needs --photos or --open-photos")
    for name, needed in _NEEDS.items():
        if name in given_names and needed not in given_names:
            parser.error(f"{_to_flag(name)} needs {_to_flag(needed)}")


class _Removed(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> NoReturn:
        parser.exit(
            _EXIT_NOT_WRITTEN,
            f"error: {self.option_strings[0]} was removed: for Triton, place the graphs by hand as "
            "docs/scale.md#triton shows\n",
        )


def _to_flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _to_precisions(text: str) -> tuple[Precision, ...]:
    chosen = tuple(part.strip() for part in text.split(","))
    for name in chosen:
        if name not in get_args(Precision):
            raise argparse.ArgumentTypeError(f"{name!r} is not one of fp32, fp16, int8")
    return chosen  # type: ignore[return-value]  # checked above


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of `ml-decoder export`; the command reference lists its options."""
    parser = argparse.ArgumentParser(
        prog="ml-decoder export", description="Turn a checkpoint into a verified ONNX bundle."
    )
    add = parser.add_argument
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--checkpoint", type=Path, help="weights, of models.train or foreign; or a "
        "folder of CLIP or SigLIP")  # fmt: skip
    add("--out", type=Path, required=True, help="folder of the bundle; its name becomes the "
        "model's")  # fmt: skip
    for flag in _REMOVED:
        add(flag, nargs="?", action=_Removed, help=argparse.SUPPRESS)
    model.add_argument("--bundle", type=Path, help="a finished bundle, instead of --checkpoint, to "
        "calibrate again or to give a --background or --words")  # fmt: skip
    add("--photos", type=Path, help="labelled folder with splits train, val and test")
    add("--precision", type=_to_precisions, help="some of fp32,fp16,int8; int8 needs --photos or "
        "--background")  # fmt: skip
    add("--compact-weights", action="store_true", help="store fp32 weights in 16 bits")
    add("--raw-scores", action="store_true", help="do not calibrate scores on the photos")
    add("--precision-target", type=float, metavar="P", help="choose each label's lowest threshold "
        "with this precision, 0 to 1, instead of best F1")  # fmt: skip
    add("--model-version", help="free text without white space (default: 1, or the bundle's)")
    add("--license", default="unknown", help="licence of the weights (default: unknown)")
    add("--training-data", help="where the weights are from (default: the checkpoint's)")
    add("--open-head", type=Path, help="checkpoint of `models.train_open`, for the same encoder")
    add("--text-encoder", type=Path, help="folder of the open head's (default: the package's)")
    add("--label-set", type=Path, action="append", default=[], help="JSON or .npz of a ready label "
        "set of open labels; may be given again (default of CLIP and SigLIP: everyday)"
    )  # fmt: skip
    add("--open-photos", type=Path, help="labelled folder to calibrate open labels on")
    add("--background", type=Path, help="folder of 200 or more photos without labels, so that new "
        "labels learn from photos, and for int8 (default: those of --photos or --open-photos; the "
        "bundle's)"
    )  # fmt: skip
    add("--words", type=Path, help="aliases, parents and translations of the labels: a label set "
        "as .csv or .json, or a bundle's words.json")  # fmt: skip
    add("--open-split", default="val", help="split of --open-photos (default: val)")
    add_hint_flags(parser)
    add("--label-names", type=Path, help="text file, one label a line, in the logits' order; or "
        "a tag file such as selected_tags.csv")  # fmt: skip
    add("--label-thresholds", type=Path, help="text file, one number from 0 to 1 a line, in this "
        "order")  # fmt: skip
    add("--category-threshold", action="append", default=[], metavar="NAME=P",
        help="threshold of a category's labels, such as general=0.35; may be "
        "given again")  # fmt: skip
    add("--embedding-encoder", help="open head: name of the model that makes the label embeddings")
    add("--embedding-template", help="open head: text to embed, {} for the label")
    return parser


if __name__ == "__main__":
    run_command(main)
