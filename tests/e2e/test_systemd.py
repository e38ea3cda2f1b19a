"""The unit's command as systemd runs it: what it sends to NOTIFY_SOCKET."""

import re
import shutil
import signal
import socket
import struct
import sys
import time
from pathlib import Path

import pytest

from service.bundle.reader import Bundle
from tests.e2e.server_process import ROOT, ServerProcess
from tests.support.serving import assert_still_serving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="systemd needs Linux")


class Unit(ServerProcess):
    """Runs ExecStart of the unit as systemd does, with keys, and receives its messages."""

    def __init__(self, bundle: Path, folder: Path, **variables: str) -> None:
        unit = (ROOT / "deploy" / "systemd" / "ml-decoder.service").read_text(encoding="utf-8")
        for name in ("predict-keys", "admin-keys"):
            (folder / name).write_text(f"key-of-the-{name}\n")
        (folder / "ml-decoder").mkdir()  # StateDirectory
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.settimeout(120)
        self._socket.bind("")  # Linux chooses an abstract address
        address = self._socket.getsockname().decode().replace("\0", "@")
        given = re.findall(r"^Environment=(\w+)=(.*)$", unit, re.MULTILINE)
        given += [("NOTIFY_SOCKET", address), ("WATCHDOG_USEC", "200000")]
        given += [("ML_DECODER_PORT", "0"), ("ML_DECODER_BUNDLE", str(bundle))]
        given = [(name, re.sub("%[Sd]", str(folder), value)) for name, value in given]
        (arguments,) = re.findall(r"^ExecStart=\S+ (.*)$", unit, re.MULTILINE)
        super().__init__(*arguments.split(), **dict(given), **variables)

    def __exit__(self, *arguments: object) -> None:
        super().__exit__(*arguments)
        self._socket.close()

    def receive(self, *, beat: bool = False) -> dict[str, str]:
        """Returns the next message that is a beat, or that is none."""
        while True:
            content, ((_, _, sender),), _, _ = self._socket.recvmsg(4096, 64)
            assert struct.unpack("iII", sender)[0] == self.pid  # NotifyAccess=main
            message = dict(line.split("=", 1) for line in content.decode().splitlines())
            if ("WATCHDOG" in message) == beat:
                return message


@pytest.mark.parametrize("workers", ["1", "2"])
def test_main_process_sends_start_reloads_beats_and_stop(
    tiny_bundle: Bundle, tmp_path: Path, workers: str
) -> None:
    bundle = shutil.copytree(tiny_bundle.path, tmp_path / "bundle")
    with Unit(bundle, tmp_path, ML_DECODER_WORKERS=workers) as unit:
        assert unit.receive()["READY"] == "1"
        with unit.connect(*unit.find_address()) as client:
            client.headers["Authorization"] = "Bearer key-of-the-predict-keys"
            assert_still_serving(client)
        for status in ("reloaded", "the reload failed"):
            before = time.monotonic_ns() // 1000
            unit.send_signal(signal.SIGHUP)
            message = unit.receive()
            assert message["RELOADING"] == "1"
            assert before <= int(message["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
            message = unit.receive()
            assert message["READY"] == "1"
            assert message["STATUS"].startswith(status)
            (bundle / "manifest.json").write_text("{")
        unit.receive(beat=True)
        unit.send_signal(signal.SIGTERM)
        assert unit.receive()["STOPPING"] == "1"
        assert unit.wait() == 0
