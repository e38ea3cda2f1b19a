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
# An option as (flags, meaning), or settings as ("", flags) -> the command that has them first.
Described = dict[tuple[str, str], str]
_MANY = 5
"""So many options of an earlier command are not described again."""


def write_commands() -> str:
    """Returns the page."""
    described: Described = {}
    lines = [_HEAD]
    for name, command in _list(typer.main.get_command(app), ""):
        lines += _write_command(name, command, described)
    return "\n".join(lines).rstrip() + "\n"


def _list(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _list(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def _write_command(name: str, command: Any, described: Described) -> Iterator[str]:
    about, _, example = command.help.partition("\n\n")
    yield f"## {name}\n"
    yield f"{' '.join(about.split())}\n"
    for line in filter(None, map(str.strip, example.splitlines())):
        yield f"Example: `{line}`\n"
    options = list(_list_exports() if name == "export" else _list_options(name, command))
    rows = [(f"`{flags}`", meaning) for flags, meaning in options if _VARIABLE not in meaning]
    by_first: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        by_first.setdefault(described.setdefault(row, name), []).append(row)
    same = {first: known for first, known in by_first.items() if len(known) >= _MANY}
    same.pop(name, None)
    known_rows = [row for known in same.values() for row in known]
    if rows:
        own = (row for row in rows if row not in known_rows)
        yield from write_table(("argument or option", "meaning"), own)
        yield ""
    for first, known in same.items():
        names = ", ".join(f"`{flags.strip('`').split()[0]}`" for flags, _ in known)
        yield f"As {_link(first)}: {names}.\n"
    yield from _write_settings(
        name, [flags for flags, text in options if _VARIABLE in text], described
    )


def _write_settings(name: str, options: list[str], described: Described) -> Iterator[str]:
    flags = ", ".join(f"`{flag.split()[0]}`" for flag in options)
    first = described.setdefault(("", flags), name)
    if name == "serve":
        yield "All [settings](settings.md).\n"
    elif flags:
        yield f"[Settings](settings.md): {flags if first == name else f'as {_link(first)}'}.\n"


def _link(name: str) -> str:
    return f"[{name}](#{name.replace(' ', '-')})"


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
