"""A small local Ray cluster and programs on it, each in its own process.

Ray is not imported in the test process: it starts threads, changes logging and warns.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.nginx import find_free_port
from tests.support.threads import wait_until

ROOT = Path(__file__).parents[2]
START_SECONDS = 300.0


class RayCluster:
    """One head node with a few CPUs; programs join it through `environment`."""

    def __init__(self, folder: Path, cpus: int) -> None:
        port = find_free_port()
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "RAY_ADDRESS": f"127.0.0.1:{port}",
            # As on a laptop: nodes use the loopback interface.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        options = {
            "port": port,
            "num-cpus": cpus,
            "object-store-memory": 100_000_000,
            "include-dashboard": "false",
            "temp-dir": folder,
        }
        flags = [f"--{name}={value}" for name, value in options.items()]
        self._log = folder / "head.log"
        with self._log.open("wb") as log:
            self._head = subprocess.Popen(
                [_find_program("ray"), "start", "--head", "--block", *flags],
                env={k: v for k, v in self.environment.items() if k != "RAY_ADDRESS"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._runs, START_SECONDS)

    def stop(self) -> None:
        """Stops the head and its child processes."""
        self._head.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._head.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._head.pid, signal.SIGKILL)
        self._head.wait()

    @contextlib.contextmanager
    def serving(self, config: Path) -> Iterator[None]:
        """Runs `serve run` with a configuration until the block ends."""
        with (config.parent / "serve.log").open("wb") as log:
            program = subprocess.Popen(
                [_find_program("serve"), "run", str(config)],
                env=self.environment,
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )
        try:
            yield
        finally:
            program.send_signal(signal.SIGINT)
            try:
                program.wait(60)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()

    def _runs(self) -> bool:
        log = self._log.read_text()
        assert self._head.poll() is None, log
        return "Ray runtime started" in log


def _find_program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))
