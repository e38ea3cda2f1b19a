"""What is printed while a device is looked for stays out of a command's answer."""

from __future__ import annotations

import onnxruntime as ort
import pytest

from service.engine.devices import check_device
from service.errors import StartError


def test_libraries_that_are_not_found_are_told_on_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def preload() -> None:
        print("Failed to load libcublasLt.so")  # noqa: T201 - as ONNX Runtime does

    monkeypatch.setattr(ort, "preload_dlls", preload)
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CPUExecutionProvider"])

    with pytest.raises(StartError, match="built without CUDAExecutionProvider"):
        check_device("cuda")

    assert capsys.readouterr() == ("", "Failed to load libcublasLt.so\n")
