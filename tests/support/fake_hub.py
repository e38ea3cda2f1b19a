"""A model hub on this machine: the files of a folder, by HEAD and by GET with ranges.

`python -m tests.support.fake_hub FOLDER PORT` serves one until it is stopped.
"""

import functools
import hashlib
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

COMMIT = "5e0e3a1f4b6c7d8e9fa0b1c2d3e4f5061728394a"
"""The revision of all repositories."""

_FILE = re.compile(r"(/cdn)?/([^/]+/[^/]+)/resolve/[^/]+/(.+)")
_LARGE = {".bin", ".onnx", ".onnx_data", ".safetensors"}  # and files above 1 MB


class FakeHub:
    """The repositories `folder/OWNER/NAME`; a folder that has files has those of all.

    As on the hub, another host sends large files, and their ETag is their SHA-256; it is git's hash
    of others.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = ""
        self.damages: bool | str = False  # the last byte of each file, or of those that end so
        self.ignores_ranges = False
        self.ranges: list[str] = []  # of all requests
        self.sent: list[str] = []  # names of the files, with a range or not
        # Status and headers of each answer, a web page; status 0 sends half of the file.
        self.answer: tuple[int, dict[str, str]] | None = None

    def use(self, monkeypatch: Any, cache: Path, *, offline: bool = False) -> None:
        """Makes it the hub of this process and of those that it starts."""
        from huggingface_hub import constants

        values = {"ENDPOINT": self.address, "HUB_CACHE": cache, "HUB_OFFLINE": offline or ""}
        for name, value in values.items():
            monkeypatch.setenv(f"HF_{name}", str(value))
            monkeypatch.setattr(constants, name if name == "ENDPOINT" else f"HF_{name}", value)
        template = self.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)

    def find(self, repository: str, name: str) -> Path | str:
        """Returns a file, or the hub's word for why there is none."""
        shared = any(path.is_file() for path in self.folder.iterdir())
        folder = self.folder if shared else self.folder / repository
        path = folder / name
        return path if path.is_file() else "EntryNotFound" if folder.is_dir() else "RepoNotFound"


@functools.lru_cache
def _hash(path: Path, size: int, _changed: int) -> str:
    if path.suffix not in _LARGE and size < 1_000_000:
        return hashlib.sha1(b"blob %d\0" % size + path.read_bytes()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub

    def do_GET(self) -> None:
        match, hub = _FILE.fullmatch(self.path), self.hub
        found = hub.find(match[2], match[3]) if match else "EntryNotFound"
        if hub.answer is not None and hub.answer[0]:
            self._send(hub.answer[0], {"Content-Length": "6"} | hub.answer[1], b"<html>")
        elif match is None or isinstance(found, str):
            self._send(401 if found == "RepoNotFound" else 404, {"X-Error-Code": str(found)})
        else:
            size = (stat := found.stat()).st_size
            etag = _hash(found, size, stat.st_mtime_ns)
            commit, other = {"X-Repo-Commit": COMMIT}, hub.address.replace("127.0.0.1", "localhost")
            if match[1] or len(etag) < 64:
                self._send_file(found, size, commit | {"ETag": f'"{etag}"'})
                return
            linked = {"X-Linked-Size": str(size), "X-Linked-ETag": f'"{etag}"'}
            self._send(302, commit | linked | {"Location": f"{other}/cdn{self.path}"})

    do_HEAD = do_GET  # noqa: N815

    def _send_file(self, path: Path, size: int, headers: dict[str, str]) -> None:
        hub, given = self.hub, self.headers.get("Range", "")
        given = "" if hub.ignores_ranges else given
        first, _, last = given.removeprefix("bytes=").partition("-")
        start, stop = int(first or 0), min(int(last or size) + 1, size)
        headers |= {"Content-Range": f"bytes {start}-{stop - 1}/{size}"} if given else {}
        headers |= {"Content-Length": str(stop - start)}
        with path.open("rb") as file:
            file.seek(start)
            part = file.read(stop - start if self.command == "GET" else 1)
        if self.command == "GET":
            hub.ranges += [given] if given else []
            hub.sent.append(path.name)
        if hub.damages is True or (hub.damages and path.name.endswith(hub.damages)):
            part = part[:-1] + b"?"
        part = part if hub.answer is None else part[: len(part) // 2]
        self._send(206 if given else 200, headers, part)

    def _send(self, status: int, headers: dict[str, str], content: bytes = b"") -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": "0"} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve_hub(folder: Path, port: int = 0) -> Iterator[FakeHub]:
    hub = FakeHub(folder)
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        hub.address = f"http://127.0.0.1:{server.server_port}"
        Thread(target=server.serve_forever, daemon=True).start()
        yield hub
        server.shutdown()


if __name__ == "__main__":
    with serve_hub(Path(sys.argv[1]), int(sys.argv[2])) as started:
        sys.stdout.write(f"export HF_ENDPOINT={started.address}\n")
        sys.stdout.flush()
        signal.pause()
