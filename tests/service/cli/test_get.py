"""`ml-decoder get`: what it refuses, before it writes anything, and what it needs."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from service.bundle.reader import load_bundle
from service.cli import get, models, options
from service.cli.models import MODELS
from tests.models.onnx_repository import write_onnx_repository
from tests.models.tiny_towers import write_towers
from tests.service.cli.conftest import Run, assert_refused
from tests.support.fake_hub import FakeHub, serve_hub
from tests.support.tiny_bundle import tiny_card, write_tiny_bundle

TINY = ("get", "hf-hub:test/tiny")


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    source = write_towers(tmp_path_factory.mktemp("torch") / "siglip", "siglip")
    tiny = write_onnx_repository(folder / "test/tiny", source)
    with (tiny / "tokenizer.json").open("a") as file:
        file.write(" " * 1_000_000)  # so large that another host sends it
    shutil.copytree(tiny, folder / MODELS["siglip2-base"].hub)
    return folder


@pytest.fixture(autouse=True)
def hub(repositories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serve_hub(repositories) as hub:
        hub.use(monkeypatch, tmp_path / "cache")
        yield hub


@pytest.fixture
def refuse(run: Run, tmp_path: Path) -> Run:
    """Runs `get`, which must end with a line with `reason`, and with no graph but `leaves`."""

    def check(reason: str, *arguments: object, leaves: str = "") -> None:
        code, said, error = run(*arguments, "--out", tmp_path / "refused")
        (line,) = (
            line for line in error.splitlines() if line.startswith(("error:", "ml-decoder:"))
        )
        assert (code, said, reason in line, error.endswith(f"{line}\n")) == (2, "", True, True), (
            error
        )
        assert {path.name for path in tmp_path.iterdir()} <= {"cache", "model", "online"}
        graphs = {path.name for path in (tmp_path / "cache").rglob("*.onnx")}
        assert graphs == ({leaves} if leaves else set())

    return check


def test_models_are_listed_and_an_unknown_name_has_the_closest(run: Run) -> None:
    code, table, _ = run("get", "--list")
    assert code == 0
    lines = table.splitlines()
    for name, model in MODELS.items():
        (line,) = (line for line in lines if line.split()[:1] == [name])
        assert model.license in line
    assert max(map(len, lines)) <= 80
    assert_refused(run, "did you mean siglip2-base?", "get", "siglip-base")


def test_ready_bundle_is_found_and_another_or_damaged_one_refused(
    run: Run, tmp_path: Path, hub: FakeHub
) -> None:
    card = tiny_card("tiny")
    origin = card.provenance.model_copy(update={"training_data": MODELS["siglip2-base"].hub})
    path = write_tiny_bundle(tmp_path, card.model_copy(update={"provenance": origin})).path
    code, out, error = run("get", "siglip2-base", "--out", path)
    assert (code, out) == (0, f"ml-decoder serve --bundle {path}\n")
    assert (error, hub.sent) == (f"{path} is ready, in fp32, int8\n", [])
    assert_refused(run, "of another model", "get", "clip-vit-l-14", "--out", path)
    background = ("--out", path, "--background", tmp_path)
    assert_refused(run, "without a background", "get", "siglip2-base", *background)
    next(path.glob("*.onnx")).write_bytes(b"damaged")
    assert_refused(run, "must have", "get", "siglip2-base", "--out", path)


def test_failed_download_is_named_and_the_next_command_finishes_it(
    run: Run, refuse: Run, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.engine.devices.multiplies_int8", lambda: True)
    given = (*TINY, "--precision", "int8")
    for status, reason in ((0, "repeat the command"), (429, "answered 429: repeat the command")):
        hub.answer = status, {"Retry-After": "1"}
        refuse(reason, *given)
    hub.answer, hub.damages = None, "text_model_quantized.onnx"
    refuse("text_model_quantized.onnx was damaged", *given, leaves="vision_model_quantized.onnx")
    hub.damages = False
    hub.sent.clear()
    assert run(*given, "--out", tmp_path / "b")[0] == 0
    assert [name for name in hub.sent if ".onnx" in name] == ["text_model_quantized.onnx"]


def test_file_that_is_not_the_pinned_one_is_refused_before_its_download(
    refuse: Run, run: Run, repositories: Path, tmp_path: Path
) -> None:
    given = ("get", "siglip2-base", "--precision", "int8")
    for reason in ("is not the file that this version knows", "--from"):
        refuse(reason, *given)
    folder = repositories / "test/tiny"
    assert run(*given, "--from", folder, "--out", tmp_path / "b")[0] == 0


def test_full_cache_is_enough_offline_and_an_empty_one_or_a_full_disk_refused(
    run: Run, refuse: Run, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.use(monkeypatch, tmp_path / "cache", offline=True)
    refuse("HF_HUB_OFFLINE is set", *TINY)
    hub.use(monkeypatch, tmp_path / "cache")
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=100_000))
        refuse("0 MB free", *TINY)
    assert run(*TINY, "--out", tmp_path / "online")[0] == 0
    hub.use(monkeypatch, tmp_path / "cache", offline=True)
    hub.answer = 500, {}
    assert run(*TINY, "--out", tmp_path / "offline")[0] == 0
    cards = [load_bundle(tmp_path / name).card for name in ("online", "offline")]
    assert cards[0].provenance == cards[1].provenance


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("onnx/vision_model.onnx", b"no graph", "onnx/vision_model.onnx"),
        ("onnx/text_model.onnx", b"", "onnx/text_model.onnx"),
        ("tokenizer.json", b"{}", "tokenizer.json"),
        ("preprocessor_config.json", b"[", "preprocessor_config.json"),
        ("config.json", b'{"model_type": "vit"}', "vit"),
        ("model.safetensors", b"\xff" * 8, "model.safetensors"),
        ("model.safetensors", b"\x10" + bytes(7) + b'{"logit_scale":1}', "model.safetensors"),
        *((name, None, name) for name in ("tokenizer.json", "preprocessor_config.json")),
        ("model.safetensors", None, "--logit-scale"),
    ],
)
def test_damaged_or_missing_file_is_named(  # noqa: PLR0913, PLR0917
    run: Run, refuse: Run, repositories: Path, tmp_path: Path, file: str, content: bytes | None,
    reason: str,
) -> None:  # fmt: skip
    folder = Path(shutil.copytree(repositories / "test/tiny", tmp_path / "model"))
    given = ("get", "siglip2-large", "--from", folder, "--precision", "fp32")
    (folder / file).unlink() if content is None else (folder / file).write_bytes(content)
    refuse(reason, *given)
    if reason == "--logit-scale":
        refuse(reason, *given, "--logit-scale", "0", "--logit-bias", "1")
        refuse("no scores", *given, "--logit-scale", "1", "--logit-bias", "nan")
        numbers = ("--logit-scale", "12.5", "--logit-bias", "-3")
        assert run(*given, *numbers, "--out", tmp_path / "b")[0] == 0


def test_wrong_argument_is_named(run: Run, refuse: Run, tmp_path: Path) -> None:
    refuse("no folder nowhere", "get", "siglip2-base", "--from", "nowhere")
    refuse("there is no such repository", "get", "hf-hub:test/none")
    refuse("hf-hub:test", "get", "hf-hub:test")
    refuse("nowhere", *TINY, "--background", "nowhere")
    refuse("--from", "get", "ram-plus")
    code, _, error = run(*TINY, "--out", tmp_path / "my bundle")
    assert (code, "--out: the folder's name" in error) == (2, True)


def test_background_of_ram_plus_reaches_the_export(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in get._RAM:
        (tmp_path / name).touch()
    passed: list[str] = []
    monkeypatch.setattr(options, "find_spec", lambda name: name)
    monkeypatch.setattr(get.runpy, "run_module", lambda *_, **__: passed.extend(sys.argv[1:]))
    given = ("--from", tmp_path, "--out", tmp_path / "b", "--background", tmp_path)
    assert run("get", "ram-plus", *given)[0] == 0
    assert {f"--background={tmp_path}", f"--checkpoint={tmp_path / get._RAM[0]}"} < {*passed}


def test_hub_is_asked_with_the_standard_library_alone(hub: FakeHub) -> None:
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    for name, variables, reason in (
        ("siglip2-base", {}, ""),
        ("siglip2-base", nowhere | {"HF_HUB_OFFLINE": "1"}, ""),
        ("siglip2-base", nowhere, "http://127.0.0.1:9"),
        ("hf-hub:test/none", {}, "test/none"),
        ("siglip-base", {}, "did you mean siglip2-base?"),
    ):
        command = [sys.executable, "-I", "-S", str(models.__file__), name]
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
        assert (done.stdout, hub.sent, reason in done.stderr) == ("", [], True)
        assert (done.returncode, done.stderr.count("\n")) == ((2, 1) if reason else (0, 0))
