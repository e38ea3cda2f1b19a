"""A real nginx for tests, with the deployed configuration or another (Debian: `nginx-light`)."""

import getpass
import random
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

from tests.support.threads import wait_until

TEMPLATE = Path(__file__).parents[2] / "deploy" / "nginx" / "default.conf.template"
_TIMEOUT_SECONDS = 60.0
# The rest of the configuration that an image has: folders and the user.
_MAIN = """{user}
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/default.conf;
}}
"""


class Nginx:
    """A proxy on a port of its own; `site` returns its configuration by its `address:port`.

    Without nginx the test is skipped.
    """

    def __init__(self, folder: Path, site: Callable[[str], str]) -> None:
        if shutil.which("nginx") is None:
            pytest.skip("no nginx here")
        self.port = find_free_port()
        self.log = folder / "error.log"
        (folder / "default.conf").write_text(site(f"127.0.0.1:{self.port}"))
        # By default root's workers run as a user that may not enter pytest's folders.
        user = "user root;" if getpass.getuser() == "root" else ""
        main = folder / "nginx.conf"
        main.write_text(_MAIN.format(folder=folder, user=user))
        command = ["nginx", "-p", str(folder), "-e", str(self.log), "-c", str(main)]
        self._process = subprocess.Popen(command)
        wait_until(self._is_listening, _TIMEOUT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(_TIMEOUT_SECONDS)

    def _is_listening(self) -> bool:
        assert self._process.poll() is None, self.log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def deployed_site(server_ports: Sequence[int]) -> Callable[[str], str]:
    """Returns the site that is deployed, in front of servers on other ports of this machine."""
    return lambda listen: render_template(
        {
            "ML_DECODER_LISTEN": listen,
            "ML_DECODER_SERVERS": _list_servers(server_ports, max_fails=1),
            "ML_DECODER_LABEL_SERVERS": _list_servers(server_ports, max_fails=0),
        }
    )


def prefix_site(
    prefix: str, server_port: int, *, strips: bool, names_it: bool
) -> Callable[[str], str]:
    """Returns a site that publishes a server below a path.

    `strips` is whether requests reach the server without the path; `names_it`, whether they have
    the path in `X-Forwarded-Prefix`.
    """
    header = f"proxy_set_header X-Forwarded-Prefix {prefix};" if names_it else ""
    # Like Traefik and ingress-nginx: the path alone is not redirected to the path and a slash.
    rewrite = f"rewrite ^{prefix}/?(.*)$ /$1 break;" if strips else ""
    return lambda listen: (
        f"""server {{
        listen {listen};
        location ~ ^{prefix}(/|$) {{
            proxy_pass http://127.0.0.1:{server_port};
            proxy_set_header Host $http_host;
            {header}
            {rewrite}
        }}
    }}"""
    )


def render_template(variables: Mapping[str, str]) -> str:
    """Fills in the template as envsubst does; a variable without a value fails."""
    return re.sub(r"\$\{(\w+)\}", lambda variable: variables[variable[1]], TEMPLATE.read_text())


def find_free_port() -> int:
    """Returns a port between those of Ray's workers and those that the system gives out.

    So no other test gets it before the server listens there, or while a replica is restarted.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _list_servers(ports: Sequence[int], max_fails: int) -> str:
    rules = f"max_fails={max_fails} fail_timeout=2s"
    return "\n".join(f"server 127.0.0.1:{port} {rules};" for port in ports)
