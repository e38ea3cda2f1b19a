"""Writes the reference of the settings from `service/settings.py`.

python -m tests.project.setting_reference > docs/settings.md
"""

import re
import sys
from collections.abc import Iterable, Iterator

from service.settings import Settings

# The first setting of each section, in the order of the fields.
_SECTIONS = {
    "bundle": "Address and model",
    "label_store": "Label sets",
    "max_batch_size": "Batches and threads",
    "max_body_bytes": "Sizes",
    "predict_keys": "Access",
    "drain_seconds": "Timeouts",
    "log_level": "Logs, metrics, traces",
}
_DEFAULT = re.compile(r"(.*)\s\(default\s(.*)\)\.", re.DOTALL)
_HEAD = """<!-- Written by `make reference` from `service/settings.py`; do not edit. -->

# Settings

Every setting is an environment variable `ML_DECODER_*` and a flag of `ml-decoder serve`:
`ML_DECODER_QUEUE_SIZE=8` is `--queue-size 8`. A flag takes precedence.

- With Compose, write variables into the file `ml-decoder.env`. A variable that your shell exports
  does not reach a container. Compose sets host and port itself.
- An unknown `ML_DECODER_*` variable is logged. If its name contains `KEY`, or if a setting of keys
  is empty, the service does not start.
- A path may begin with `~`.
"""


def write_settings() -> str:
    """Returns the page."""
    sections: list[list[tuple[str, str, str]]] = []
    for name, field in Settings.model_fields.items():
        if name in _SECTIONS:
            sections.append([])
        match = _DEFAULT.fullmatch(field.description or "")
        assert match is not None, f"{name}: the docstring must end with its default"
        sections[-1].append((f"`ML_DECODER_{name.upper()}`", f"{match[1]}.", match[2]))
    lines = [_HEAD]
    for heading, rows in zip(_SECTIONS.values(), sections, strict=True):
        table = write_table(("variable", "meaning", "default"), rows)
        lines += [f"## {heading}\n", *table, ""]
    return "\n".join(lines).rstrip() + "\n"


def write_table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Yields the lines of a table; line breaks become spaces."""
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        cells = (" ".join(cell.split()).replace("|", "\\|") for cell in row)
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.stdout.write(write_settings())
