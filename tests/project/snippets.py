"""The code blocks of the documents.

A comment `<!-- not run: why -->` before a block skips it with that reason. In a `console` block, a
line after `$ ` is a command and continues while lines end in a backslash.
"""

import re
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Snippet:
    place: str  # `README.md:21`
    language: str  # the word after the backticks
    code: str
    reason: str | None  # why it is not run
    answers: str | None = None  # the JSON block right after it, which shows its output


def read_snippets(path: Path, name: str) -> list[Snippet]:
    text = path.read_text()
    snippets: list[Snippet] = []
    matches = list(_BLOCK.finditer(text))
    for match, following in zip_longest(matches, matches[1:]):
        line = text.count("\n", 0, match.start("code"))
        answers = None
        if following and following["language"] == "json":
            between = text[match.end() : following.start()]
            answers = following["code"] if not between.strip() else None
        snippets.append(
            Snippet(f"{name}:{line}", match["language"], match["code"], match["reason"], answers)
        )
    return snippets


def read_commands(code: str) -> str:
    """Returns the commands of a `console` block as a shell script."""
    commands: list[str] = []
    open_quote = goes_on = False
    for line in code.splitlines():
        if line.startswith("$ "):
            commands.append(line[2:])
        elif goes_on or open_quote:
            commands[-1] += "\n" + line
        else:
            continue  # what the command prints
        goes_on = line.endswith("\\")
        open_quote = commands[-1].count("'") % 2 == 1
    return "\n".join(commands)
