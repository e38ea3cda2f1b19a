"""Flags that commands share: one for each setting and one for each field of a question."""

import functools
import inspect
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from pydantic import ValidationError

from service.errors import StartError, quote
from service.settings import SERVICE_LINK, Settings, clean

# They have a flag for a file too: other users of the machine can read arguments.
_SECRETS = ("predict_keys", "admin_keys")
_Texts = list[str] | None
_Command = Callable[..., None]
_QUESTION_FLAGS: dict[str, Any] = {
    "top_k": Annotated[str | None, typer.Option(metavar="INT", help="Most labels per photo.")],
    "min_labels": Annotated[
        str | None,
        typer.Option(metavar="INT", help="All found labels, and the best others up to this many."),
    ],
    "threshold": Annotated[
        str | None,
        typer.Option(
            metavar="SCORE", help="Minimum score: 0 to 1, calibrated, balanced, recall, precise."
        ),
    ],
    "include": Annotated[_Texts, typer.Option(help="Only this label; repeatable.")],
    "exclude": Annotated[_Texts, typer.Option(help="Not this label; repeatable.")],
    "category": Annotated[_Texts, typer.Option(help="Labels of this category; repeatable.")],
    "parent": Annotated[_Texts, typer.Option(help="Labels below this, as animal; repeatable.")],
    "label_set": Annotated[_Texts, typer.Option(help="Labels of this set; repeatable.")],
    "candidate_labels": Annotated[
        _Texts, typer.Option(help="A label for this run only; repeatable.")
    ],
    "lang": Annotated[str | None, typer.Option(metavar="TAG", help="Language of words, as de.")],
    "parents": Annotated[bool | None, typer.Option("--parents", help="Show labels' parents.")],
}


def add_flags(command: _Command, settings: Sequence[str] | None = None) -> _Command:
    """Replaces a command's parameters `settings` (None: all of them) and `question` by flags."""
    chosen = list(Settings.model_fields) if settings is None else list(settings)
    parameters: list[inspect.Parameter] = []
    # Any value for `Question`, which `--help` does not import.
    signature = inspect.signature(command, eval_str=True, locals={"Question": object})
    for parameter in signature.parameters.values():
        if parameter.name == "question":
            parameters += [_make_parameter(name, flag) for name, flag in _QUESTION_FLAGS.items()]
        elif parameter.name != "settings":
            parameters.append(parameter)
    parameters += [_make_parameter(name, _make_setting_flag(name)) for name in chosen]
    files = [f"{name}_file" for name in _SECRETS if name in chosen]
    parameters += [_make_parameter(name, _make_file_flag(name)) for name in files]

    @functools.wraps(command)
    def with_flags(**values: object) -> None:
        given = {name: values.pop(name) for name in (*chosen, *files)}
        if "question" in command.__annotations__:
            from service.fields import validate
            from service.question import Question

            flags = ((name, values.pop(name)) for name in _QUESTION_FLAGS)
            asked = {name: value for name, value in flags if value not in (None, [])}
            values["question"] = validate(Question, asked, "command line")
        command(settings=_read_settings(given), **values)

    # typer reads the flags from the signature.
    with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_flags


def name_flag(setting: str) -> str:
    """Returns the flag of a setting: `--max-pixels` for `max_pixels`."""
    return f"--{setting.replace('_', '-')}"


def name_variable(setting: str) -> str:
    """Returns the environment variable of a setting: `ML_DECODER_MAX_PIXELS`."""
    return f"{Settings.model_config['env_prefix']}{setting}".upper()


def read_path(text: str) -> Path:
    """Returns the path. Raises typer.BadParameter if the text is empty."""
    return Path(refuse_empty(text))


def path_argument(metavar: str, about: str) -> Any:  # noqa: ANN401 - typer's own type is private
    """Returns the description of an argument that is a path."""
    return typer.Argument(metavar=metavar, help=about, parser=read_path, show_default=False)


def path_option(metavar: str, about: str, *flags: str) -> Any:  # noqa: ANN401
    """Returns the description of an option that is a path; without flags, its parameter's name."""
    return typer.Option(*flags, metavar=metavar, help=about, parser=read_path, show_default=False)


def refuse_empty(text: str) -> str:
    """Returns the text; refuses an empty one, as of an unset variable: `Path('')` is `.`."""
    if not text:
        raise typer.BadParameter("it is empty")
    return text


def require_extra(extra: str, *packages: str) -> None:
    """Raises StartError if one of the packages that an extra brings is missing."""
    for package in packages:
        if find_spec(package) is None:
            raise StartError(f"{package} is missing: pip install -e '.[{extra}]' in the checkout")


OneObject = Annotated[bool, typer.Option("--json", help="One JSON object.")]
ExcludedPaths = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude-path",
        metavar="PATTERN",
        help="Leave out files and folders that match, like '*_small.jpg'; repeatable.",
        parser=refuse_empty,
    ),
]


def _read_settings(given: dict[str, Any]) -> Settings:
    empty = [name for name, text in given.items() if text is not None and not clean(text)]
    if empty:  # an unset variable of a shell; an empty host would mean every interface
        raise StartError(f"{name_flag(empty[0])} is empty")
    for name in _SECRETS:
        path = given.pop(f"{name}_file", None)
        if path is not None and given[name] is not None:
            raise StartError(f"{name_flag(name)} and its file: give one of them")
        if path is not None:
            given[name] = f"@{path}"
    try:
        return Settings(**{name: text for name, text in given.items() if text is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        reason = f"{first['msg']}; it is {quote(value := str(first['input']))}"
        if SERVICE_LINK.match(value):
            reason += ", which Kubernetes sets for a Service of this name: set enableServiceLinks: "
            reason += "false in the pod's spec"
        raise StartError(f"{name_flag(name)} or {name_variable(name)}: {reason}") from error


def _make_parameter(name: str, annotation: Any) -> inspect.Parameter:  # noqa: ANN401 - a type
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=None, annotation=annotation)


def _make_setting_flag(name: str) -> Any:  # noqa: ANN401 - a type
    # Text: `Settings` converts and checks it, as it does with variables.
    info = Settings.model_fields[name]
    kind: Any = info.annotation
    option = typer.Option(
        name_flag(name),
        help=f"{info.description} Variable: {name_variable(name)}.",
        metavar="NAME" if get_args(kind) else getattr(kind, "__name__", "text").upper(),
        show_default=False,
        rich_help_panel="Settings",
    )
    return Annotated[str | None, option]


def _make_file_flag(name: str) -> Any:  # noqa: ANN401 - a type
    about = f"File of {name_flag(name.removesuffix('_file'))}, one key a line."
    option = typer.Option(name_flag(name), help=about, metavar="FILE", rich_help_panel="Settings")
    return Annotated[str | None, option]
