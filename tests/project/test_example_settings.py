"""The example of settings is complete, valid, and changes nothing until a line is uncommented."""

import re
from pathlib import Path

import pytest

from service.settings import Settings, check_variables

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "ml-decoder.env.example").read_text(encoding="utf-8").splitlines()
EXAMPLES = dict(
    line.removeprefix("#").split("=", 1) for line in LINES if re.match(r"#?[A-Z_]+=", line)
)
PREFIX = "ML_DECODER_"
GIVEN = {
    name.removeprefix(PREFIX).lower(): value
    for name, value in EXAMPLES.items()
    if name.startswith(PREFIX)
}
# The images set where to listen; the others seldom change.
LEFT_OUT = {"host", "port", "screen", "label_poll_seconds", "candidate_cache_size", "max_wait_ms"}


def test_example_file_has_every_setting_but_those_left_out() -> None:
    assert GIVEN.keys() == Settings.model_fields.keys() - LEFT_OUT


def test_example_values_are_valid_and_the_defaults_where_there_are_some() -> None:
    read = Settings(**GIVEN)
    defaults = Settings.model_construct()
    for name in GIVEN:
        default = Settings.model_fields[name].default
        if default is not None and name != "bundle":
            assert getattr(read, name) == getattr(defaults, name), name


def test_copied_example_changes_nothing_until_a_line_is_uncommented(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert all(line.startswith("#") for line in LINES if line)
    # Docker takes everything after `=` as the value.
    assert not [value for value in EXAMPLES.values() if " " in value]
    check_variables(EXAMPLES)
    assert caplog.messages == []
