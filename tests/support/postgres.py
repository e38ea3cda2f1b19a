"""A real PostgreSQL server for tests (Debian: `postgresql`), also behind PgBouncer."""

import getpass
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.threads import wait_until

# Not in Debian's PATH; the newest version is last.
_DEBIAN_FOLDERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


class Postgres:
    """A server in a folder, reached by a socket there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._schemas = 0
        # The server refuses to run as root.
        self._as_user = ["runuser", "-u", "postgres", "--"] if getpass.getuser() == "root" else []
        if self._as_user:
            shutil.chown(folder, "postgres")
        self._run("initdb", "-D", str(folder / "data"), "-A", "trust", "-U", "postgres", "-N")
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={self._folder}"

    def make_database(self) -> str:
        """Makes an empty schema, 900 files less than a database; returns its URL."""
        self._schemas += 1
        name = f"test{self._schemas}"
        self._run("psql", "-h", str(self._folder), "-U", "postgres", "-c", f"CREATE SCHEMA {name}")
        return f"{self.url}&options=-csearch_path%3D{name}"

    def start(self) -> None:
        options = f"-c fsync=off -c listen_addresses='' -c unix_socket_directories={self._folder}"
        log = str(self._folder / "log")
        self._run("pg_ctl", "-D", str(self._folder / "data"), "-o", options, "-l", log, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self._folder / "data"), "-m", "immediate", "stop")

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Stops the server: the kernel accepts connections, and no answer comes."""
        first = (self._folder / "data" / "postmaster.pid").read_text().split()[0]
        others = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        processes = [int(process) for process in (first, *others)]
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in processes:
                os.kill(process, signal.SIGCONT)

    @contextmanager
    def pooled(self) -> Iterator[str]:
        """Yields the URL of an empty schema, behind PgBouncer with two sessions."""
        program = shutil.which("pgbouncer") or pytest.skip("no pgbouncer here")
        schema, port = self.make_database().rpartition("%3D")[2], 6000 + self._schemas
        settings = self._folder / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\nlabels = host={self._folder} dbname=postgres user=postgres "
            f"connect_query='SET search_path TO {schema}'\n[pgbouncer]\nlisten_port = {port}\n"
            f"unix_socket_dir = {self._folder}\npool_mode = transaction\ndefault_pool_size = 2\n"
            "auth_type = any\n"
        )
        user = "postgres" if self._as_user else None
        process = subprocess.Popen([program, "--quiet", str(settings)], user=user)
        try:
            wait_until((self._folder / f".s.PGSQL.{port}").exists)
            yield f"postgresql://nobody@/labels?host={self._folder}&port={port}"
        finally:
            process.kill()
            process.wait()

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as_user, str(_find_program(program)), *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd="/")


def find_missing() -> str | None:
    for program in ("initdb", "pg_ctl"):
        if _find_program(program) is None:
            return f"no {program} here"
    if getpass.getuser() == "root" and shutil.which("runuser") is None:
        return "no runuser here"
    return None


def _find_program(name: str) -> str | None:
    folders = (shutil.which(name, path=str(folder)) for folder in reversed(_DEBIAN_FOLDERS))
    return next(filter(None, folders), None) or shutil.which(name)
