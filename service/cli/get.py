"""`ml-decoder get NAME`: a published model as a bundle."""

import json
import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from service.bundle.card import Precision
from service.cli.models import HUB, MODELS, RAM, Model, find_model
from service.cli.options import path_option, require_extra
from service.errors import StartError

_RAM = ("ram_plus_swin_large_14m.pth", "ram_tag_list.txt", "ram_tag_list_threshold.txt")


def get(  # noqa: PLR0913 - a command has a parameter for each flag
    *,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One of --list, or hf-hub:OWNER/NAME.")
    ] = None,
    folder: Annotated[
        Path | None, path_option("FOLDER", "The model's files, instead of the hub's.", "--from")
    ] = None,
    out: Annotated[Path | None, path_option("BUNDLE", "Instead of bundles/NAME.")] = None,
    precision: Annotated[
        Precision | None, typer.Option(help="Default: what is fastest here.")
    ] = None,
    background: Annotated[
        Path | None, path_option("FOLDER", "200 or more photos, so that labels learn from photos.")
    ] = None,
    logit_scale: Annotated[
        float | None, typer.Option(min=1e-3, help="Factor of the cosine, if no file has it.")
    ] = None,
    logit_bias: Annotated[
        float | None, typer.Option(help="Bias of SigLIP's logits, if no file has it.")
    ] = None,
    list_models: Annotated[bool, typer.Option("--list", help="Show the models.")] = False,
) -> None:
    """Make a bundle of a strong published model; downloads its files.

    ml-decoder get siglip2-base
    """
    if list_models or name is None:
        _show_models()
        if list_models:
            return
        raise StartError("NAME is missing")
    try:
        model = find_model(name)
    except ValueError as error:
        raise StartError(str(error)) from error
    if folder is not None and not folder.is_dir():
        raise StartError(f"--from: no folder {folder}")
    out, code = out or Path("bundles", name.rpartition("/")[2]), 0
    is_ready = _is_ready(out, model, background)
    if not is_ready and name == RAM:
        code = _export_ram(model, folder, out, background)
    elif not is_ready:
        require_extra("get", "export", "onnx", "huggingface_hub")
        request = {
            **{"place": folder or HUB + model.hub, "out": out, "background": background},
            **{"logit_scale": logit_scale, "logit_bias": logit_bias},
            **model._asdict(),
            **_choose_precisions(precision),
        }
        code = run_module("export.towers", json.dumps(request, default=str))
    if code in (0, 1):  # 1: photos were left out
        sys.stdout.write(f"ml-decoder serve --bundle {out}\n")
    raise typer.Exit(code)


def _show_models() -> None:
    table = Table("name", Column("on the hub", overflow="fold"), "licence", box=None)
    for name, model in MODELS.items():
        table.add_row(name, model.hub, model.license)
    Console().print(table)


def _is_ready(out: Path, model: Model, background: Path | None) -> bool:
    from service.bundle.reader import load_bundle
    from service.bundle.writer import check_target

    check_target(out)
    if not out.exists() or not any(out.iterdir()):
        return False
    bundle = load_bundle(out)
    if bundle.card.provenance.training_data != model.hub:
        raise StartError(f"{out} is a bundle of another model: give another --out")
    if background is not None and bundle.card.background is None:
        raise StartError(f"{out} is ready, without a background: give another --out")
    sys.stderr.write(f"{out} is ready, in {', '.join(bundle.precisions())}\n")
    return True


def _choose_precisions(asked: Precision | None) -> dict[str, Precision]:
    """Returns the fastest of the image tower, and of the texts, which a CPU encodes."""
    from service.engine.devices import may_use_gpu, multiplies_int8

    cpu: Precision = "int8" if multiplies_int8() else "fp32"
    fastest = "fp16" if may_use_gpu("auto") else cpu
    return {"precision": asked or fastest, "text_ap": "fp32" if asked == "fp32" else cpu}


def _export_ram(model: Model, folder: Path | None, out: Path, background: Path | None) -> int:
    if folder is None or not all((folder / name).is_file() for name in _RAM):
        raise StartError(
            f"--from needs a folder with {_RAM[0]} of {model.hub}, and with "
            f"{' and '.join(_RAM[1:])} of github.com/xinyu1205/recognize-anything"
        )
    require_extra("export", "export", "torch", "onnx")
    files = zip(("checkpoint", "label-names", "label-thresholds"), _RAM, strict=True)
    flags: dict[str, object] = {name: folder / file for name, file in files}
    flags |= {"background": background} if background else {}
    flags |= {"out": out, "license": model.license, "training-data": model.hub}
    return run_module("export", *(f"--{name}={value}" for name, value in flags.items()))


def run_module(module: str, *arguments: str) -> int:
    """Runs a command of the export, by name: the service must not import modules that need onnx."""
    sys.argv = [f"ml-decoder {module}", *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return int(end.code or 0)
    return 0
