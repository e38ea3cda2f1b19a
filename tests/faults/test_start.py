"""Tests of failed starts: one line for the operator, an exit code, never ready."""

import shutil
import subprocess
from pathlib import Path

import pytest

from service.bundle.reader import Bundle, load_bundle
from service.errors import BundleError
from tests.e2e.server_process import ServerProcess, serve_command
from tests.faults.conftest import serve
from tests.support.serving import assert_problem, assert_still_serving


class HomelessServer(ServerProcess):
    """Runs the command as a user without HOME and without an entry in /etc/passwd."""

    program = (
        "-c",
        "import os, sys\n"
        "for name in ('HOME', 'XDG_STATE_HOME'): os.environ.pop(name, None)\n"
        "user = ['unshare', '--user', '--map-user=1000660000', '--map-group=0']\n"
        "os.execvp(user[0], [*user, sys.executable, '-m', 'service.cli', *sys.argv[1:]])",
    )


def flip_a_byte(bundle: Path) -> None:
    graph = next(bundle.glob("encoder.fp32*"))
    content = bytearray(graph.read_bytes())
    content[len(content) // 2] ^= 1
    graph.write_bytes(content)


def test_missing_bundle_stops_the_start_before_a_port_is_open(
    open_bundle: Bundle, tmp_path: Path
) -> None:
    with ServerProcess(*serve_command(tmp_path / "none")) as server:
        assert server.wait() == 2
    assert len(server.stderr.splitlines()) == 1, server.stderr
    with serve(open_bundle, "--device", "auto", CUDA_VISIBLE_DEVICES="") as (server, client):
        server.wait_for_line(r"listening address=\S+ port=\d+ state=loading\n")
        server.wait_for_line(r"WARNING.*cuda")
        assert client.get("/info").json()["runtime"]["device"] == "cpu"
        assert_still_serving(client)


def test_folder_of_bundles_is_refused_by_their_names(open_bundle: Bundle) -> None:
    with pytest.raises(BundleError, match=f"contains the bundles {open_bundle.path}; name one"):
        load_bundle(open_bundle.path.parent)


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "--user", "true"], check=False).returncode != 0,
    reason="no right to make a user namespace",
)
def test_user_without_a_home_folder_gets_predictions_and_one_line_about_the_store(
    open_bundle: Bundle,
) -> None:
    command = serve_command(open_bundle)
    with HomelessServer(*command, "--label-store", "~/labels") as refused:
        assert refused.wait() == 2
    words = "ml-decoder: this user has no home folder for ~/labels: set HOME"
    assert refused.stderr.splitlines()[-1].startswith(words)
    with HomelessServer(*command) as server, server.open_client() as client:
        (line,) = (line for line in server.stderr.splitlines() if "WARNING" in line)
        assert "no home folder for ~/.local/state" in line
        assert "registrations are refused until ML_DECODER_LABEL_STORE is set" in line
        body = {"name": "zoo", "labels": ["yak"]}
        assert_problem(client.post("/labels", json=body), 409, "store_read_only")
        assert client.get("/labels").status_code == 200
        assert_still_serving(client)
