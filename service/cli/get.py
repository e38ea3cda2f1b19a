"""`ml-decoder get NAME`: a published model as a bundle, exported in an environment of its own."""

import importlib.util
import shutil
import signal
import subprocess
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.table import Column, Table

from service.cli.options import path_option
from service.errors import StartError

_TOWERS = (
    *("config.json", "model.safetensors", "preprocessor_config.json"),
    *("tokenizer.json", "tokenizer_config.json"),
)
_RAM = ("ram_plus_swin_large_14m.pth", "ram_tag_list.txt", "ram_tag_list_threshold.txt")


class Model(NamedTuple):
    """A published model; sizes are computed from its tensors, but for the download of RAM++."""

    hub: str
    license: str
    download_mb: int
    bundle_mb: int  # in fp32
    memory: str = "memory not measured"  # of the export
    speed: str = "not measured"
    files: tuple[str, ...] = _TOWERS


MODELS = {
    "siglip2-base": Model(
        *("google/siglip2-base-patch16-256", "Apache-2.0", 1501, 1501),
        *("11 GB of memory", "4.9 photos/s in fp32 on two cores"),
    ),
    "siglip2-so400m": Model("google/siglip2-so400m-patch14-384", "Apache-2.0", 4544, 3129),
    "clip-vit-l-14": Model("openai/clip-vit-large-patch14", "MIT", 1710, 1710),
    "ram-plus": Model(
        *("xinyu1205/recognize-anything-plus-model", "Apache-2.0", 3010, 1400),
        *("12 GB of memory", "not measured", _RAM),
    ),
}

_CHECKOUT = Path(__file__).parents[2]
_ENVIRONMENT = ".venv-export"
_ENVIRONMENT_MB = 6000  # with CUDA


def can_export() -> bool:
    """Whether this Python has the extra `export`."""
    return all(
        importlib.util.find_spec(module) is not None for module in ("torch", "onnx", "export")
    )


def get(
    *,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One of --list.")] = None,
    folder: Annotated[
        Path | None, path_option("FOLDER", "The model's files, instead of the hub's.", "--from")
    ] = None,
    out: Annotated[Path | None, path_option("BUNDLE", "Instead of bundles/NAME.")] = None,
    background: Annotated[
        Path | None, path_option("FOLDER", "200 or more photos: int8, and labels from photos.")
    ] = None,
    list_models: Annotated[bool, typer.Option("--list", help="Show the models.")] = False,
) -> None:
    """Download a strong published model and make a bundle of it.

    ml-decoder get siglip2-base
    """
    if list_models or name not in MODELS:
        _show_models()
        if list_models:
            return
        near = get_close_matches(name or "", MODELS, 1, 0.0)
        raise StartError(f"no model {name}: did you mean {near[0]}?" if name else "NAME is missing")
    out, model, code = out or Path("bundles", name), MODELS[name], 0
    if _is_ready(out, model, background):
        sys.stderr.write(f"{out} is ready\n")
    else:
        flags = _choose_flags(model, folder, background)
        _announce(name, folder, out, flags[0])
        command = [_make_environment(), "-P", "-m", "export", f"--out={out}", *flags]
        code = subprocess.run(command).returncode
    if code and not _is_ready(out, model):  # 1 is also the code of a traceback
        files = f"{', '.join(model.files)} of {model.hub}"
        hint = f"{folder} must have" if folder else "without the hub, give --from a folder with"
        reason = "killed: too little memory" if code == -signal.SIGKILL else "see above"
        raise StartError(f"no bundle, {reason}; {hint} {files}")
    sys.stdout.write(f"ml-decoder serve --bundle {out}\n")
    raise typer.Exit(code)


def _show_models() -> None:
    columns = Column("name", no_wrap=True), Column("on the hub", overflow="fold"), "licence"
    table = Table(*columns, "MB", "bundle", box=None, padding=(0, 1, 0, 0))  # at most 80 wide
    for name, model in MODELS.items():
        sizes = (f"{model.download_mb:,}", f"{model.bundle_mb:,}")
        table.add_row(name, model.hub, model.license, *sizes)
    Console().print(table, "MB of the download, and of the bundle in fp32", sep="\n")


def _is_ready(out: Path, model: Model, background: Path | None = None) -> bool:
    from service.bundle.reader import load_bundle
    from service.bundle.writer import check_target

    check_target(out)
    if not out.exists() or not any(out.iterdir()):
        return False
    card = load_bundle(out).card
    if card.provenance.training_data != model.hub:
        raise StartError(f"{out} is a bundle of another model: give another --out")
    if background is not None and card.background is None:
        raise StartError(f"{out} is ready, without a background: give another --out")
    return True


def _choose_flags(model: Model, folder: Path | None, background: Path | None) -> list[str]:
    """Returns flags of the export; the first is the precision that is fastest here."""
    from service.engine.devices import may_use_gpu, multiplies_int8

    if folder is not None and not folder.is_dir():
        raise StartError(f"--from: no folder {folder}")
    files: dict[str, object] = {"checkpoint": folder or f"hf-hub:{model.hub}"}
    quantises = background is not None and multiplies_int8()
    if model.files is _RAM:
        if folder is None or not all((folder / name).is_file() for name in model.files):
            raise StartError(
                f"--from needs a folder with {model.files[0]} of {model.hub}, and with "
                f"{' and '.join(model.files[1:])} of github.com/xinyu1205/recognize-anything"
            )
        names = ("checkpoint", "label-names", "label-thresholds")
        files = dict(zip(names, (folder / name for name in model.files), strict=True))
        quantises = False  # this needs labelled photos
    other = "fp16" if may_use_gpu("auto") else "int8" if quantises else ""
    flags = {"precision": f"fp32,{other}".strip(","), "license": model.license, **files}
    flags |= {"training-data": model.hub, "background": background}
    return [f"--{name}={value}" for name, value in flags.items() if value is not None]


def _announce(name: str, folder: Path | None, out: Path, precision: str) -> None:
    """Writes what the command takes. Raises StartError if the disk is too small for it."""
    model, makes = MODELS[name], not can_export()
    new = f"{_ENVIRONMENT}: minutes, {_ENVIRONMENT_MB:,} MB; less if pip finds torch for CPUs"
    sys.stderr.write(
        f"{name} is {model.hub}, licence {model.license}\n"
        f"  environment: {new if makes else 'ready'}\n"
        f"  download:    {folder or f'{model.download_mb:,} MB'}\n"
        f"  export:      minutes, {model.memory}, {precision.strip('-')}\n"
        f"  bundle:      {out}, {model.bundle_mb:,} MB in fp32\n"
        f"  speed:       {model.speed}\n"
    )
    disk = next(folder for folder in out.absolute().parents if folder.exists())
    needed = model.bundle_mb + _ENVIRONMENT_MB * makes
    if needed > (free := shutil.disk_usage(disk).free // 1_000_000):
        raise StartError(f"disk: {disk} has {free:,} MB free, and this takes {needed:,}")


def _make_environment() -> str:
    """Returns a Python with the extra `export`: this one, or that of a virtual environment."""
    if can_export():
        return sys.executable
    project = _CHECKOUT / "pyproject.toml"
    if not project.exists():
        raise StartError("get needs the extra `export`: pip install -e '.[export]' in the checkout")
    folder = _CHECKOUT / _ENVIRONMENT
    python, done = str(folder / "bin" / "python"), folder / ".installed"
    if not done.exists() or done.stat().st_mtime < project.stat().st_mtime:
        pins = f"--constraint={_CHECKOUT / 'constraints' / 'dev.txt'}"
        install = [python, "-m", "pip", "install", pins, "--editable", f"{_CHECKOUT}[export]"]
        for command in ([sys.executable, "-m", "venv", str(folder)], install):
            if subprocess.run(command).returncode:
                raise StartError(f"{folder} is unfinished, see above: repeat the command")
        done.touch()
    return python
