"""A real server: `ml-decoder serve` as a process on a free port."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

import httpx2 as httpx

from service.bundle.reader import Bundle

ROOT = Path(__file__).parents[2]
# An import finder that refuses the packages that the service must not need.
_START = """
import sys

class Refuser:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "timm", "onnx", "pyarrow", "ray", "pillow_heif"}:
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)

sys.meta_path.insert(0, Refuser())
sys.argv = ["ml-decoder", *sys.argv[1:]]
from service.cli.commands import main
main()
"""
_LISTENING = re.compile(r"listening address=(\S+) port=(\d+)")
_PATIENCE_SECONDS = 120.0


def serve_command(bundle: Bundle | Path, *flags: str) -> tuple[str, ...]:
    path = bundle.path if isinstance(bundle, Bundle) else bundle
    return ("serve", "--bundle", str(path), "--port", "0", "--device", "cpu", *flags)


class ServerProcess:
    """Runs the command line, as one process unless it says otherwise, and collects its stderr."""

    program: tuple[str, ...] = ("-c", _START)

    def __init__(self, *arguments: str, **variables: str) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ML_DECODER_")}
        self._process = subprocess.Popen(
            [sys.executable, *self.program, *arguments],
            cwd=ROOT,
            env={**environment, "PYTHONPATH": str(ROOT), "ML_DECODER_WORKERS": "1", **variables},
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: list[str] = []
        self._ended = False
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self.wait()

    @property
    def stderr(self) -> str:
        with self._changed:
            return "".join(self._lines)

    def wait_for_line(self, pattern: str | re.Pattern[str]) -> re.Match[str]:
        """Waits for `pattern` in stderr and returns its first match."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._ended or re.search(pattern, "".join(self._lines)), _PATIENCE_SECONDS
            )
            match = re.search(pattern, "".join(self._lines))
        assert match, self.stderr
        return match

    def open_client(self) -> httpx.Client:
        """Waits until the service is ready and returns a client."""
        self.wait_for_line(r"ready model=")
        return self.connect(*self.find_address())

    def connect(self, host: str, port: int) -> httpx.Client:
        return httpx.Client(base_url=f"http://{host}:{port}", timeout=_PATIENCE_SECONDS)

    def find_address(self) -> tuple[str, int]:
        """Waits until the server listens and returns host and port."""
        address = self.wait_for_line(_LISTENING)
        return address.group(1), int(address.group(2))

    @property
    def pid(self) -> int:
        return self._process.pid

    def read_memory(self, field: str = "VmRSS") -> int:
        """Returns resident memory in bytes; with `VmHWM` its peak."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        line = re.search(rf"{field}:\s+(\d+) kB", status)
        assert line
        return int(line[1]) * 1024

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def stop(self) -> int:
        """Sends SIGTERM, and returns the exit code."""
        self.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Waits for the end and returns the exit code; stderr is complete then."""
        code = self._process.wait(_PATIENCE_SECONDS)
        self._reader.join(_PATIENCE_SECONDS)
        assert self._process.stderr is not None
        self._process.stderr.close()
        return code

    def _collect(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
