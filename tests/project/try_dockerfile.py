"""Runs the Dockerfile's steps without a container engine.

`python -m tests.project.try_dockerfile cpu` needs root, Debian and `debootstrap`. It builds each
stage in its own root file system by `chroot`, starts the service with the image's command and
variables, as the image's user and as one of OpenShift's, runs the health check, registers a label
set, stops it by SIGTERM and prints the size in MB. A minimal Debian with Python 3.11 replaces the
base image.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from tests.project.dockerfile import Stage, parse_dockerfile

ROOT = Path(__file__).parents[2]
_RELEASE = "bookworm"
_PACKAGES = "ca-certificates,python3,python3-pip,python3-venv"
# Paths that Debian's images leave out (the second line: slim images only).
_LEFT_OUT = (
    *("var/cache/apt", "var/lib/apt/lists", "var/log"),
    *("usr/share/doc", "usr/share/info", "usr/share/lintian", "usr/share/locale", "usr/share/man"),
)
# Settings of this machine's package index; an image has none.
_BORROWED_FILES = (
    *("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf"),
    "/etc/ssl/certs/ca-certificates.crt",
)
_BORROWED_VARIABLES = ("PIP_CERT", "PIP_INDEX_URL", "SSL_CERT_FILE")
_START_SECONDS = 120.0
_OPENSHIFT_USER = "1000660000:0"
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


@dataclass
class Root:
    """A stage under construction; `user` is `uid:gid`, root by default."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "0:0"
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)

    def copy(self, folder: Path) -> Self:
        """Returns a copy in another folder, as `FROM` does."""
        _run(["cp", "--archive", "--reflink=auto", str(self.folder), str(folder)])
        return replace(self, folder=folder, environment=dict(self.environment))

    def enter(self, command: Sequence[str]) -> list[str]:
        """Returns the command line that runs a command inside."""
        changed = ["chroot", f"--userspec={self.user}", str(self.folder)]
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        inside = ["sh", "-c", 'cd "$0" && exec "$@"', self.workdir, *command]
        return [*changed, "/usr/bin/env", "-i", f"PATH={_PATH}", *variables, *inside]


def build(target: str, scratch: Path) -> Root:
    """Builds a target's stages in folders below `scratch`; returns the last one."""
    stages = {stage.name: stage for stage in parse_dockerfile((ROOT / "Dockerfile").read_text())}
    base = Root(scratch / "image")
    _run(["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", _RELEASE, str(base.folder)])
    (base.folder / "usr/bin/python").symlink_to("python3")
    for folder in _LEFT_OUT:
        shutil.rmtree(base.folder / folder, ignore_errors=True)
    for file in filter(os.path.exists, _BORROWED_FILES):
        shutil.copy(file, f"{base.folder}{file}")
    return _build_stage(target, stages, scratch, base, {})


def _build_stage(
    name: str, stages: dict[str, Stage], scratch: Path, base: Root, built: dict[str, Root]
) -> Root:
    if name not in stages:
        return base
    if name not in built:
        stage = stages[name]
        parent = _build_stage(stage.base, stages, scratch, base, built)
        root = parent.copy(scratch / name)
        steps = [step for step in stage.instructions if step[0] != "EXPOSE"]  # read by people only
        for keyword, rest in steps:
            print(f"[{name}] {keyword} {rest[:100]}", flush=True)
            source = rest.split()[0].removeprefix("--from=")
            if keyword == "COPY" and rest.startswith("--from="):
                _build_stage(source, stages, scratch, base, built)
            _take_step(root, keyword, rest, built)
        built[name] = root
    return built[name]


def _take_step(root: Root, keyword: str, rest: str, built: dict[str, Root]) -> None:
    match keyword:
        case "RUN":
            borrowed = [f"{k}={os.environ[k]}" for k in _BORROWED_VARIABLES if k in os.environ]
            _run(root.enter(["/usr/bin/env", *borrowed, "sh", "-c", rest]))
        case "COPY":
            _copy(root, rest.split(), built)
        case "ENV":
            pairs = (pair.split("=", 1) for pair in rest.split())
            root.environment |= {name: value.replace("$PATH", _PATH) for name, value in pairs}
        case "WORKDIR":
            root.workdir = rest
            Path(f"{root.folder}{rest}").mkdir(parents=True, exist_ok=True)
        case "USER":
            root.user = rest
        case "CMD":
            root.command = json.loads(rest)
        case "HEALTHCHECK":
            root.health = json.loads(rest[rest.index("[") :])
        case _:
            raise NotImplementedError(f"{keyword} is not known here")


def _copy(root: Root, words: list[str], built: dict[str, Root]) -> None:
    options = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
    *sources, target = (word for word in words if not word.startswith("--"))
    origin = built[options["from"]].folder if "from" in options else ROOT
    # As in a checkout under umask 077, which the Dockerfile has to correct.
    mode = options.get("chmod", None if "from" in options else "go=")
    for source in sources:
        start = origin / source.lstrip("/")
        goal = Path(f"{root.folder}{os.path.join(root.workdir, target)}")
        if start.is_dir():
            shutil.copytree(start, goal, symlinks=True, dirs_exist_ok=True, ignore=_ignore)
        else:
            is_folder = target.endswith("/") or goal.is_dir()
            goal = goal / start.name if is_folder else goal
            goal.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(start, goal)
        if mode is not None:
            _run(["chmod", "--recursive", mode, str(goal)])


def _ignore(folder: str, names: list[str]) -> list[str]:
    # As .dockerignore does for the build context.
    return [name for name in names if name == "__pycache__" and folder.startswith(str(ROOT))]


def try_service(root: Root, port: int) -> None:
    """Starts the image's command, waits for its health check, registers a set, sends SIGTERM."""
    root.environment["ML_DECODER_PORT"] = str(port)
    root.environment["ML_DECODER_HOST"] = "127.0.0.1"
    with kernel_folders(root.folder), subprocess.Popen(root.enter(root.command)) as service:
        try:
            deadline = time.monotonic() + _START_SECONDS
            while subprocess.run(root.enter(root.health), check=False).returncode:
                if service.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("the service did not become ready")
                time.sleep(0.5)
            body = json.dumps({"name": "try", "labels": ["red panda"]}).encode()
            headers = {"Content-Type": "application/json"}
            url = f"http://127.0.0.1:{port}/labels"
            with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
                if answer.status != 201:
                    raise SystemExit(f"POST /labels was answered with {answer.status}")
        finally:
            service.send_signal(signal.SIGTERM)
        if service.wait(60) != 0:
            raise SystemExit(f"the service stopped with {service.returncode}")


@contextmanager
def kernel_folders(folder: Path) -> Iterator[None]:
    """Mounts /proc and the like, as a container engine does."""
    mounted: list[Path] = []
    try:
        for kind, place in (("proc", folder / "proc"), ("sysfs", folder / "sys")):
            _run(["mount", "-t", kind, "-o", "ro", kind, str(place)])
            mounted.append(place)
        yield
    finally:
        for place in mounted:
            _run(["umount", str(place)])


def weigh(folder: Path) -> float:
    """Returns the size of a tree in MB (10^6 bytes)."""
    done = subprocess.run(
        ["du", "--summarize", "--bytes", str(folder)], check=True, capture_output=True, text=True
    )
    return int(done.stdout.split()[0]) / 1e6


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True)


def main() -> None:
    """Builds and tests a target; prints its size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=("cpu", "gpu", "openvino"))
    parser.add_argument("--port", type=int, default=18000, help="a free port")
    arguments = parser.parse_args()
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        sys.exit("this needs root and debootstrap")
    with tempfile.TemporaryDirectory(prefix="image-") as scratch:
        os.chmod(scratch, 0o755)  # the image's user must enter it
        root = build(arguments.target, Path(scratch))
        if arguments.target != "gpu":
            store = root.folder / root.environment["ML_DECODER_LABEL_STORE"].lstrip("/")
            for user in (root.user, _OPENSHIFT_USER):
                try_service(replace(root, user=user), arguments.port)
                store.unlink()
        base = weigh(Path(scratch) / "image")
        whole = weigh(root.folder)
        print(f"{arguments.target}: {whole:.0f} MB, of which {base:.0f} MB are Debian and Python")


if __name__ == "__main__":
    main()
