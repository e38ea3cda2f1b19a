"""Writes the reference of the settings from `service/settings.py`.

python -m tests.project.setting_reference > docs/settings.md
"""

import sys

from service.settings import Settings
from tests.project.api_reference import write_table

_HEAD = """# Settings

Made from `service/settings.py` by `make reference`; do not edit.

Every setting is an environment variable `ML_DECODER_*` and a flag of `ml-decoder serve`:
`ML_DECODER_QUEUE_SIZE=8` is `--queue-size 8`. A flag takes precedence.

- Compose passes on the variables in a file `ml-decoder.env`, except for host and port. A variable
  that your shell exports does not reach a container.
- An unknown `ML_DECODER_*` variable is logged. If its name contains `KEY`, or if a setting of keys
  is empty, the service does not start.
- A path may begin with `~`.
"""


def write_settings() -> str:
    """Returns the page."""
    rows = [
        (f"`ML_DECODER_{name.upper()}`", (field.description or "").replace("|", "or"))
        for name, field in Settings.model_fields.items()
    ]
    return "\n".join([_HEAD, *write_table(("variable", "meaning"), rows)]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(write_settings())
