"""Messages to systemd; `tests/e2e/test_systemd.py` has a server's."""

import os
import socket
import sys
from pathlib import Path

import pytest

from service.process.notify import Watchdog, notify

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="systemd needs Linux")


@pytest.mark.parametrize(
    ("pid", "limit", "watched"),
    [("", "60000000", True), ("own", "60000000", True), ("1", "60000000", False), ("", "", False)],
)
def test_beat_is_sent_once_in_half_of_the_limit_if_this_process_is_watched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pid: str, limit: str, watched: bool
) -> None:
    monkeypatch.setenv("WATCHDOG_PID", pid.replace("own", str(os.getpid())))
    monkeypatch.setenv("WATCHDOG_USEC", limit)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "socket"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "socket"))
        watchdog = Watchdog()
        for _ in range(2):
            assert 29 < (watchdog.beat() or 0) <= 30 or not watched
        notify("READY=1")
        received = [manager.recv(99) for _ in range(1 + watched)]
        assert received == [b"WATCHDOG=1"] * watched + [b"READY=1"]


def test_unreachable_socket_is_a_line_of_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "@" + "too long" * 99)
    notify("READY=1", "STATUS=serving")
    (message,) = caplog.messages
    assert message.startswith("systemd does not get READY=1: ")
