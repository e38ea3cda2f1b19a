"""The commands of `ml-decoder`, except for those in `labels.py` and `bulk/command.py`."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import importlib.util
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from service import errors
from service.cli import labels
from service.cli.bulk.command import BULK_SETTINGS, bulk
from service.cli.console import EXIT_SOME_FAILED, write_json
from service.cli.get import get, run_module
from service.cli.options import (
    ExcludedPaths,
    OneObject,
    add_flags,
    path_argument,
    path_option,
    require_extra,
)
from service.cli.sidecars import sidecars
from service.logs import configure_logs
from service.settings import Settings

if TYPE_CHECKING:
    from service.question import Question

EXIT_CANNOT_START = 2

_PREDICT_SETTINGS = (
    *("bundle", "device", "cuda_options", "precision", "intra_op_threads", "max_pixels"),
    *("label_store", "label_sets", "default_label_set"),
)

_EPILOG = """Exit codes: 0 done, 1 a photo failed, 2 invalid use or cannot start, 3 failed.

--install-completion makes the shell complete commands and flags."""

app = typer.Typer(
    name="ml-decoder", epilog=_EPILOG, invoke_without_command=True, pretty_exceptions_enable=False
)


@app.callback()
def show_help(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """Multi-label tags for photos, by ML-Decoder."""
    if version:
        from importlib.metadata import version as find_version

        typer.echo(f"ml-decoder-serve {find_version('ml-decoder-serve')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Runs the command line; an expected error is one line on stderr."""
    # If a decoder crashes the process, stderr has the signal and the thread's stack.
    faulthandler.enable(2, all_threads=False)
    _accept_all_file_names()
    try:
        # Standalone, typer would draw a box around errors.
        code = app(prog_name="ml-decoder", standalone_mode=False)
    except errors.ServiceBroken as error:
        _write_error(str(error))
        sys.stderr.flush()
        os._exit(errors.ServiceBroken.exit_code)  # Python's own exit could wait for a hanging GPU
    except typer.TyperException as error:
        _fail(f"{error.format_message()} (see --help)")
    except typer.Abort:
        _fail("stopped")
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        _fail("ONNX Runtime is missing: pip install -e '.[cpu]' in the checkout, or '.[gpu]'")
    except (errors.ServiceError, errors.BundleError, OSError) as error:
        _fail(_explain(error))
    raise SystemExit(code if isinstance(code, int) else 0)


def _accept_all_file_names() -> None:
    """Makes stdout write any file name: one that it cannot encode would end a long run."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        is_utf8 = sys.stdout.encoding.lower() == "utf-8"
        sys.stdout.reconfigure(errors="surrogateescape" if is_utf8 else "backslashreplace")


def _explain(error: Exception) -> str:
    match error:
        case errors.InvalidParameters():
            return "; ".join(f"{value.name}: {value.reason}" for value in error.values)
        case errors.ServiceError() if not isinstance(error, errors.StartError | errors.StoreError):
            return ": ".join(filter(None, (error.title, error.detail)))
        case OSError():  # without a name, mostly of stdout: a full disk
            reason = error.strerror or str(error)
            return f"{error.filename}: {reason}" if error.filename else reason
    return str(error)


def _fail(reason: str) -> NoReturn:
    _write_error(reason)
    raise SystemExit(EXIT_CANNOT_START)


def _write_error(reason: str) -> None:
    line = " ".join(reason.replace("\r", "\\r").split())
    sys.stderr.write(f"ml-decoder: {errors.escape(line)}\n")


def serve(settings: Settings) -> None:
    """Serve predictions over HTTP until SIGTERM or Ctrl+C, and a page for browsers.

    ml-decoder serve --bundle bundles/my-model --port 8000
    """
    gc.disable()  # as in `__main__`
    from service.cli.serve import serve_model

    gc.enable()
    serve_model(settings)


def predict(  # noqa: PLR0913 - a command has a parameter for each flag
    *,
    settings: Settings,
    photos: Annotated[list[Path], path_argument("PHOTO", "Image files, or folders of them.")],
    question: Question,
    exclude_path: ExcludedPaths = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Write pictures of where each label was found, beside the photos."
        ),
    ] = False,
    out: Annotated[Path | None, path_option("FOLDER", "Folder of these pictures instead.")] = None,
    output: Annotated[
        Literal["table", "json", "csv"],
        typer.Option(
            "--format", help="A table per photo, a JSON object per photo, or a CSV row per label."
        ),
    ] = "table",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Label photos with the service's own pipeline, without a server.

    ml-decoder predict photo.jpg --top-k 3

    ml-decoder predict holiday/ --label-set everyday --format csv > tags.csv
    """
    from service.cli.predict import choose_folders, predict_photos

    if out is not None and not explain:
        raise errors.StartError("--out needs --explain")
    paths = _find_photos(photos, exclude_path or ())
    folders = None
    if explain:
        question = question.model_copy(update={"explain": "overlay"})
        folders = choose_folders(paths, photos, out)
    configure_logs("error")
    chosen = "json" if as_json else output
    if not asyncio.run(predict_photos(paths, question, settings, chosen, folders)):
        raise typer.Exit(EXIT_SOME_FAILED)


def info(
    bundle: Annotated[Path, path_argument("BUNDLE", "Folder of the bundle.")],
    as_json: OneObject = False,
) -> None:
    """Verify a bundle and show its model card.

    ml-decoder info bundles/ml-decoder-lite0
    """
    from service.bundle.reader import load_bundle
    from service.cli.info import describe_bundle, show_bundle
    from service.labels.files import read_bundle_sets

    verified = load_bundle(bundle)
    read_bundle_sets(verified)
    if as_json:
        write_json(describe_bundle(verified))
    else:
        show_bundle(verified)


def export(context: typer.Context) -> None:
    """Make a bundle from a checkpoint; `ml-decoder export --help` shows the options."""
    calibrates = any(argument.startswith("--bu") for argument in context.args)  # --bundle
    require_extra(*(("get",) if calibrates else ("export", "torch")), "export", "onnx")
    raise typer.Exit(run_module("export", *context.args))


def bench(  # noqa: PLR0913 - a command has a parameter for each flag
    *,
    photos: Annotated[
        list[Path] | None, path_argument("PHOTO", "Image files or folders; a sample by default.")
    ] = None,
    url: Annotated[str, typer.Option(help="Address of the service.")] = "http://localhost:8000",
    clients: Annotated[int, typer.Option(min=1, max=1000, help="Concurrent requests.")] = 8,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="Duration.")] = 10.0,
    label_set: Annotated[list[str] | None, typer.Option(help="Label set; repeatable.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="ML_DECODER_API_KEY", help="Sent with every request.")
    ] = None,
    as_json: OneObject = False,
) -> None:
    """Send photos to a running service for a while, and show rate and latencies.

    ml-decoder bench --url http://localhost:8000 --clients 8 --seconds 10
    """
    if importlib.util.find_spec("ml_decoder_client") is None:
        raise errors.StartError("bench needs the client: pip install ./client in the checkout")
    from service.cli.bench import SAMPLE, open_client, run_bench, show_load
    from service.images.raw import load_photo

    contents = [load_photo(path) for path in _find_photos(photos or [SAMPLE])]
    client = open_client(url, api_key, clients)
    show = write_json if as_json else show_load
    show(run_bench(client, contents, clients, seconds, label_set or ()))


def _find_photos(paths: Sequence[Path], exclude: Sequence[str] = ()) -> list[Path]:
    from service.images.folders import describe_left_out, find_photos

    photos, left_out = find_photos(paths, exclude)
    if left_out:
        sys.stderr.write(f"{describe_left_out(left_out)}\n")
    return photos


_PASS_ON: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}

app.command()(add_flags(serve))
app.command()(add_flags(predict, _PREDICT_SETTINGS))
app.command()(add_flags(bulk, BULK_SETTINGS))
app.command()(sidecars)
app.add_typer(labels.app, name="labels")
app.command()(info)
app.command(context_settings=_PASS_ON, add_help_option=False)(export)
app.command()(get)
app.command()(bench)
