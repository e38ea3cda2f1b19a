"""Writes the reference of the command line from the commands themselves.

python -m tests.project.command_reference > docs/command-line.md
"""

import argparse
import re
import sys
from collections.abc import Iterator
from typing import Any

import typer

from export.__main__ import make_parser
from service.cli.commands import app
from tests.project.setting_reference import write_table

_HEAD = """<!-- Written by `make reference` from the commands; do not edit. -->

# Command line

`ml-decoder COMMAND --help` shows the same.

- [Exit codes](errors.md#exit-codes)
- `ml-decoder --install-completion` makes your shell complete commands and flags.
"""
_VARIABLE = "Variable: ML_DECODER_"


def write_commands() -> str:
    """Returns the page."""
    group = typer.main.get_command(app)
    lines = [line for name, command in _list(group, "") for line in _write_command(name, command)]
    return "\n".join([_HEAD, *lines]).rstrip() + "\n"


def _list(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _list(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def _write_command(name: str, command: Any) -> Iterator[str]:
    about, _, example = command.help.partition("\n\n")
    yield f"## {name}\n"
    yield f"{' '.join(about.split())}\n"
    for line in filter(None, map(str.strip, example.splitlines())):
        yield f"Example: `{line}`\n"
    settings, rows = [], []
    for flags, meaning in _list_exports() if name == "export" else _list_options(name, command):
        if _VARIABLE in meaning:
            settings.append(f"`{flags.split()[0]}`")
        else:
            rows.append((f"`{flags}`", meaning))
    if rows:
        yield from write_table(("argument or option", "meaning"), rows)
        yield ""
    if settings:
        yield f"[Settings](settings.md): {', '.join(settings)}.\n"


def _list_options(name: str, command: Any) -> Iterator[tuple[str, str]]:
    context = typer.Context(command, info_name=name)
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record and record[0] != "--help":  # hidden ones have none
            flags, meaning = record
            # Brackets would be links.
            yield flags, re.sub(r" *\[(.*?)\]", r" (\1)", meaning)


def _list_exports() -> Iterator[tuple[str, str]]:
    for action in make_parser()._actions:
        if action.dest != "help" and action.help != argparse.SUPPRESS:
            value = f" {action.metavar or action.dest.upper()}" if action.nargs != 0 else ""
            if action.choices:
                value = f" {'|'.join(action.choices)}"
            yield f"{action.option_strings[0]}{value}", action.help or ""


if __name__ == "__main__":
    sys.stdout.write(write_commands())
