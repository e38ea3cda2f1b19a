"""A model hub on this machine: the files of a folder, by HEAD and by GET with ranges."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread


class FakeHub:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = ""
        self.damages = False  # the last byte of each file that is sent
        self.ignores_ranges = False
        self.ranges: list[str] = []  # of all requests
        # Status and headers of each answer, a web page; status 0 sends half of the file.
        self.answer: tuple[int, dict[str, str]] | None = None


@contextmanager
def serve_hub(folder: Path) -> Iterator[FakeHub]:
    hub = FakeHub(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if hub.answer is not None and hub.answer[0]:
                self.send_response(hub.answer[0])
                for name, value in {"Content-Length": "6", **hub.answer[1]}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(b"<html>" if self.command == "GET" else b"")
                return
            path = hub.folder / self.path.rpartition("/")[2]
            content = path.read_bytes() if path.is_file() else b""
            given = "" if hub.ignores_ranges else self.headers.get("Range", "")
            start, _, end = given.removeprefix("bytes=").partition("-")
            part = content[int(start or 0) : int(end or len(content)) + 1]
            self.send_response((206 if given else 200) if content else 404)
            self.send_header("X-Repo-Commit" if content else "X-Error-Code", "EntryNotFound")
            digest = hashlib.sha256(content)
            if path.suffix == ".json":  # git has it, not its large files
                digest = hashlib.sha1(b"blob %d\0" % len(content) + content)
            self.send_header("ETag", f'"{digest.hexdigest()}"')
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            if self.command == "GET":
                hub.ranges += [given] if given else []
                part = part[: len(part) // 2] if hub.answer is not None else part
                self.wfile.write(part[:-1] + (b"?" if hub.damages else part[-1:]))

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.address = f"http://127.0.0.1:{server.server_port}"
        Thread(target=server.serve_forever, daemon=True).start()
        yield hub
        server.shutdown()
