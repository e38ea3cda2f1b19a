"""Tests of settings: environment, checks, help texts."""

from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from service.errors import StartError
from service.settings import Settings, check_variables

UNITS = {"_ms": "Milliseconds", "_seconds": "Seconds", "_bytes": "bytes", "_pixels": "pixels"}


def test_setting_has_a_docstring_with_its_default_and_its_unit() -> None:
    for name, field in Settings.model_fields.items():
        units = [unit for suffix, unit in UNITS.items() if name.endswith(suffix)]
        for word in ("default", *units):
            assert word in (field.description or ""), name


def test_environment_sets_and_argument_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_DECODER_QUEUE_SIZE", "7")
    monkeypatch.setenv("ML_DECODER_BUNDLE", "some/where")
    monkeypatch.setenv("ML_DECODER_DEVICE", "")
    assert Settings().queue_size == 7
    assert Settings().bundle == Path("some/where")
    assert Settings().device == "auto"
    assert Settings(queue_size=9).queue_size == 9


def test_white_space_and_quotes_around_values_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"BUNDLE": "'some/where'\r", "PORT": ' "80" ', "HOST": " \r", "CORS_ORIGINS": '"a","b"'}
    for name, text in texts.items():
        monkeypatch.setenv(f"ML_DECODER_{name}", text)
    settings = Settings(predict_keys="\r")  # type: ignore[arg-type]
    assert (settings.bundle, settings.port, settings.host) == (Path("some/where"), 80, "127.0.0.1")
    assert settings.cors_origins == '"a","b"'
    assert settings.predict_keys == SecretStr("")  # refused later


def test_path_may_begin_with_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("ML_DECODER_LABEL_SETS", "~/sets")
    settings = Settings.model_validate({"bundle": "~/bundle"})
    assert (settings.bundle, settings.label_sets) == (
        Path("/home/me/bundle"),
        Path("/home/me/sets"),
    )
    assert Settings(bundle=Path("~no-such-user/a")).bundle == Path("~no-such-user/a")


@pytest.mark.parametrize(
    ("name", "value"),
    [("device", "tpu"), ("port", -1), ("queue_size", 0), ("max_wait_ms", -1), ("unknown", 1)]
    + [("model_alias", alias) for alias in ("a/b", "/", "x" * 201)]
    + [
        (name, value)
        for name, field in Settings.model_fields.items()
        if field.annotation is float
        for value in ("inf", "nan")
    ],
)
def test_invalid_setting_or_duration_that_is_not_finite_is_refused(
    name: str, value: object
) -> None:
    with pytest.raises(ValidationError, match=name):
        Settings.model_validate({name: value})


def test_unknown_variable_is_logged_with_the_closest_setting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    check_variables({"ML_DECODER_DEVCE": "cpu", "ML_DECODER_XYZ": "", "PATH": ""})
    logged = [record.getMessage() for record in caplog.records]
    assert logged == [
        "ML_DECODER_DEVCE is not a setting; did you mean ML_DECODER_DEVICE?",
        "ML_DECODER_XYZ is not a setting",
    ]


@pytest.mark.parametrize(
    "name", ["ML_DECODER_PREDICT_KEY", "ml_decoder_admin_key", "ML_DECODER_KEYS"]
)
def test_unknown_variable_with_key_in_its_name_is_refused(name: str) -> None:
    with pytest.raises(StartError, match=f"{name} is not a setting"):
        check_variables({name: "secret"})


def test_settings_and_variables_of_others_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    ours = ("API_KEY", "PUBLISH", "LISTEN", "SERVERS", "LABEL_SERVERS")
    kubernetes = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT_8000_TCP_ADDR")
    names = (*(name.upper() for name in Settings.model_fields), *ours, *kubernetes)
    check_variables({f"ML_DECODER_{name}": "x" for name in names} | {"ml_decoder_port": ""})
    check_variables({"ML_DECODER_KEYS_PORT": "tcp://10.0.0.1:80"})  # of a Service ml-decoder-keys
    assert not caplog.records


@pytest.mark.parametrize("name", ["ML_DECODER_PREDICT_KEYS", "ml_decoder_admin_keys"])
@pytest.mark.parametrize("value", ["", " ", '""\r'])
def test_empty_variable_of_keys_is_refused(name: str, value: str) -> None:
    with pytest.raises(StartError, match=f"{name} is empty"):
        check_variables({name: value})
    check_variables({name: "a-good-key-0000001"})


def test_default_bundle_is_in_the_current_folder_else_in_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = Path("bundles/ml-decoder-lite0")
    monkeypatch.chdir(tmp_path)
    assert Settings().bundle == Path(__file__).parents[2] / name
    (tmp_path / name).mkdir(parents=True)
    assert Settings().bundle == name
