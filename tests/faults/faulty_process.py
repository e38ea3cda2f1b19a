"""The faulty server as a process."""

from pathlib import Path

from service.bundle.reader import Bundle
from tests.e2e.server_process import ServerProcess, serve_command


class FaultyProcess(ServerProcess):
    """Starts `faulty_server.py`; `release` unblocks the engine, `block` blocks it again."""

    program = ("-m", "tests.faults.faulty_server")

    def __init__(
        self, bundle: Bundle, folder: Path, *flags: str, opens: bool = True, **more: str
    ) -> None:
        self._hold, self._open = folder / "hold", folder / "open"
        if opens:
            self.open()
        # Neither limit ends what a test holds.
        limits = ("--deadline-ms", "300000", "--drain-seconds", "300", "--label-store", "memory")
        variables = {"FAULTS_HOLD": str(self._hold), "FAULTS_OPEN": str(self._open)}
        super().__init__(*serve_command(bundle, *limits, *flags), **variables, **more)

    def release(self) -> None:
        self._hold.touch()

    def block(self) -> None:
        self._hold.unlink(missing_ok=True)

    def open(self, worker: int | None = None) -> None:
        """Lets one worker, or all, open the bundle."""
        suffix = "" if worker is None else f"-{worker}"
        Path(f"{self._open}{suffix}").touch()

    def shut(self) -> None:
        """Blocks the next opening of the bundle until `open`."""
        self._open.unlink()

    def count_runs(self) -> int:
        """Returns how often the engine ran, warming up included."""
        return self.stderr.count("run images=")

    def assert_runs(self, count: int) -> None:
        """Waits until the log has so many runs of the engine; more are a failure."""
        self.wait_for_line(rf"(?s)(?:run images=.*?){{{count}}}")
        assert self.count_runs() == count
