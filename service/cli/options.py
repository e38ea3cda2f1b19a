"""Flags: the settings as command line flags, made from `Settings` so that none drifts.

In: a command that takes `Settings`. Out: the same command for typer, with one flag for
each setting. A flag wins over its environment variable, which wins over the default; the
checking is `Settings`' own, the same for all three. Next: `commands.py`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, get_args

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from service.errors import StartError
from service.settings import Settings

_PANEL = "Settings"


def add_setting_flags(
    command: Callable[..., None], names: Sequence[str] | None = None
) -> Callable[..., None]:
    """Replaces a command's parameter `settings` by one flag for each setting.

    Args:
        command: a function with a keyword parameter `settings: Settings`.
        names: the settings that get a flag; None means all of them.
    """
    chosen = list(Settings.model_fields) if names is None else list(names)
    own = [
        parameter
        for parameter in inspect.signature(command, eval_str=True).parameters.values()
        if parameter.name != "settings"
    ]

    @functools.wraps(command)
    def with_flags(**values: str | None) -> None:
        given = {name: values.pop(name) for name in chosen}
        command(settings=_read_settings(given), **values)

    flags = [_make_flag(name, Settings.model_fields[name]) for name in chosen]
    # typer reads a command's signature, so this is where the flags are declared.
    with_flags.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]
    with_flags.__annotations__ = {p.name: p.annotation for p in (*own, *flags)}
    return with_flags


def name_flag(setting: str) -> str:
    """Returns the flag of a setting: `max_pixels` is `--max-pixels`."""
    return f"--{setting.replace('_', '-')}"


def name_variable(setting: str) -> str:
    """Returns the environment variable of a setting: `ML_DECODER_MAX_PIXELS`."""
    return f"{Settings.model_config['env_prefix']}{setting}".upper()


def _read_settings(given: dict[str, Any]) -> Settings:
    empty = [name for name, text in given.items() if text == ""]
    if empty:  # an unset variable of a shell: as a host it would mean every interface
        raise StartError(f"{name_flag(empty[0])} is empty")
    try:
        return Settings(**{name: text for name, text in given.items() if text is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        raise StartError(f"{name_flag(name)} or {name_variable(name)}: {first['msg']}") from error


def _make_flag(name: str, info: FieldInfo) -> inspect.Parameter:
    # Flags are texts: `Settings` converts and checks them, as it does with variables.
    option = typer.Option(
        name_flag(name),
        help=f"{info.description} Variable: {name_variable(name)}.",
        metavar=_describe_type(info),
        show_default=False,
        rich_help_panel=_PANEL,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[str | None, option],
    )


def _describe_type(info: FieldInfo) -> str:
    annotation: Any = info.annotation
    return getattr(annotation, "__name__", "text").upper() if not get_args(annotation) else "NAME"
