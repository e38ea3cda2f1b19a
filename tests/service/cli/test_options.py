"""Flags of settings and paths."""

import pytest

from ml_decoder_client.calls import Question as ClientQuestion
from service.cli import serve as serving
from service.cli.options import name_flag, name_variable
from service.question import Question
from service.settings import Settings
from tests.service.cli.conftest import Run, assert_refused


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("port", "70000", "Input should be less than or equal to 65535; it is '70000'\n"),
        ("port", "tcp://10.43.0.12:80", "set enableServiceLinks: false in the pod's spec"),
        ("metrics_port", "tcp://10.43.0.12:80", "set enableServiceLinks: false in the pod's spec"),
    ],
)
def test_serve_names_a_wrong_variable(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    monkeypatch.setenv(name_variable(name), value)
    assert_refused(run, f"ml-decoder: {name_flag(name)} or {name_variable(name)}: ", "serve")
    assert_refused(run, says, "serve")


# Of `predict`, a flag without a value; of a version, the store here has the last one; `bulk` has
# `--embeddings`.
_NO_OPTION = {"explain", "min_version", "embedding"}


@pytest.mark.parametrize("command", ["predict", "bulk"])
def test_parameters_of_a_prediction_have_one_name_everywhere(run: Run, command: str) -> None:
    assert ClientQuestion.__annotations__.keys() == Question.model_fields.keys()
    _, out, _ = run(command, "--help")
    for name in Question.model_fields.keys() - _NO_OPTION:
        assert f"{name_flag(name)} " in out


def test_serve_has_a_flag_for_each_setting_that_names_its_variable(run: Run) -> None:
    code, out, _ = run("serve", "--help")
    assert code == 0
    for name in Settings.model_fields:
        assert name_flag(name) in out
        assert name_variable(name) in out


def test_flag_takes_precedence_over_variable_and_default(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Settings] = []
    monkeypatch.setattr(serving, "serve_model", served.append)
    monkeypatch.setenv("ML_DECODER_PORT", "1111")
    run("serve")
    run("serve", "--port", "2222", "--max-wait-ms", "2.5")
    assert [settings.port for settings in served] == [1111, 2222]
    assert [settings.max_wait_ms for settings in served] == [0.0, 2.5]


@pytest.mark.parametrize(
    "arguments",
    [
        *(("predict", ""), ("bench", ""), ("bulk", "", "out"), ("bulk", "in", ""), ("info", "")),
        *(("labels", "add", "zoo", "--file", ""), ("labels", "calibrate", "zoo", "--photos", "")),
        *(("serve", "--host", ""), ("serve", "--label-sets", ""), ("labels", "list", "--bundle=")),
    ],
)
def test_empty_value_is_refused(run: Run, arguments: tuple[str, ...]) -> None:
    assert_refused(run, "is empty", *arguments)


def test_keys_are_given_once_as_text_or_file(run: Run) -> None:
    flags = ("--admin-keys", "sesame", "--admin-keys-file", "keys")
    assert_refused(run, "--admin-keys and its file: give one of them", "serve", *flags)
