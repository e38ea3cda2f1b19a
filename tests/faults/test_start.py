"""Tests of failed starts: one line for the operator, an exit code, never ready."""

import hashlib
import json
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto

from service.bundle.reader import Bundle
from tests.e2e.server_process import ServerProcess
from tests.faults.conftest import serve, serve_command
from tests.support.serving import assert_problem, assert_still_serving
from tests.support.tiny_bundle import copy_bundle, edit_manifest, tiny_head, tiny_label_encoder


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
    graph = find_graph(bundle, "encoder")
    content = bytearray(graph.read_bytes())
    content[len(content) // 2] ^= 1
    graph.write_bytes(content)


def drop_a_label(bundle: Path) -> None:
    labels = bundle / "labels.json"
    replace_file(bundle, labels, json.dumps(json.loads(labels.read_text())[1:]).encode())


def keep_weights_outside(bundle: Path) -> None:
    model = onnx.load(find_graph(bundle, "trained_head"))
    tensor = next(t for t in model.graph.initializer if t.name == "weight")
    (bundle.parent / "outside.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../outside.bin")
    replace_graph(bundle, "trained_head", model.SerializeToString())


def find_graph(bundle: Path, name: str) -> Path:
    return next(bundle.glob(f"{name}.fp32*"))


def replace_graph(bundle: Path, name: str, content: bytes) -> None:
    replace_file(bundle, find_graph(bundle, name), content)


def replace_file(bundle: Path, file: Path, content: bytes) -> None:
    """Writes a file and its new hash, as an attacker would."""
    record = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    edit_manifest(bundle, lambda manifest: manifest["files"].update({file.name: record}))
    file.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_byte,
        drop_a_label,
        keep_weights_outside,
        lambda bundle: find_graph(bundle, "trained_head").unlink(),
        lambda bundle: (bundle / "manifest.json").unlink(),
        lambda bundle: replace_graph(bundle, "encoder", b"not a graph"),
        lambda bundle: replace_graph(bundle, "trained_head", tiny_head(num_labels=4)),
        lambda bundle: replace_graph(bundle, "label_encoder", tiny_label_encoder(width=7)),
    ],
    ids=[
        *("byte flipped", "label dropped", "weights outside", "graph missing", "manifest missing"),
        *("junk for a graph", "fewer labels scored", "wider embeddings"),
    ],
)
def test_damaged_bundle_stops_the_start_with_one_line(
    open_bundle: Bundle, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    bundle = copy_bundle(open_bundle, tmp_path)
    damage(bundle)
    assert_start_fails(*serve_command(bundle))


def test_missing_bundle_stops_the_start_before_a_port_is_open(
    open_bundle: Bundle, tmp_path: Path
) -> None:
    with ServerProcess(*serve_command(tmp_path / "none")) as server:
        assert server.wait() == 2
    assert len(server.stderr.splitlines()) == 1, server.stderr
    with serve(open_bundle) as (server, client):
        server.wait_for_line(r"listening address=\S+ port=\d+ state=loading\n")
        assert_still_serving(client)


@pytest.mark.parametrize(
    "flags",
    [
        *(("--device", "cuda"), ("--label-store", "ftp://x"), ("--port", "-1")),
        *(("--queue-size", "0"), ("--label-store", __file__), ("--host", "none.invalid")),
        ("--max-held-bytes", "10000000"),  # less than max_body_bytes
    ],
)
def test_unusable_setting_stops_the_start_with_one_line(
    open_bundle: Bundle, flags: tuple[str, str]
) -> None:
    # No GPU is visible, so this holds on a machine with one as well.
    assert_start_fails(*serve_command(open_bundle.path), *flags, CUDA_VISIBLE_DEVICES="")


def test_taken_port_stops_the_start_with_one_line(open_bundle: Bundle) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert_start_fails(
            *serve_command(open_bundle.path),
            *("--port", port),
            says=f"cannot listen on 127.0.0.1:{port}: the port is already in use; set another",
        )


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="there is no IPv6 here")
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_port_taken_in_one_of_two_families_stops_the_start_with_one_line(
    open_bundle: Bundle, family: socket.AddressFamily
) -> None:
    with socket.create_server(("", 0), family=family) as taken:
        port = str(taken.getsockname()[1])
        assert_start_fails(
            *serve_command(open_bundle.path),
            *("--host", "::", "--port", port),
            says=f"cannot listen on [::]:{port}: the port is already in use",
        )


def test_host_of_another_machine_stops_the_start_by_name(open_bundle: Bundle) -> None:
    command = serve_command(open_bundle.path)
    assert_start_fails(*command, "--host", "192.0.2.1", says="not an address of this machine")


def test_folder_of_bundles_stops_the_start_and_names_them(open_bundle: Bundle) -> None:
    folder = open_bundle.path.parent
    assert_start_fails(
        *serve_command(folder), says=f"it contains the bundles {open_bundle.path}; name one"
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\xff", "cannot be read: it is not UTF-8 text"),
        (b" \n,\n", "contains no keys"),
    ],
)
def test_key_file_that_has_no_keys_is_named(
    open_bundle: Bundle, tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    assert_start_fails(
        *serve_command(open_bundle.path),
        says=f"predict_keys: the key file {path} {reason}",
        ML_DECODER_PREDICT_KEYS=f"@{path}",
    )


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--predict-keys-file", ""), "--predict-keys-file is empty"),
        (("--admin-keys-file", "/no/such"), "the key file /no/such cannot be read"),
        (("--admin-keys-file", "/a", "--admin-keys", "@/a"), "--admin-keys and its file: give one"),
        *(
            (("--allowed-hosts", host), "allowed_hosts: a host must be a name such as")
            for host in ("https://a.example", "a.example:8000", "a.*.example", "*example", "ä.lan")
        ),
    ],
)
def test_invalid_access_stops_the_start_with_one_line(
    open_bundle: Bundle, flags: tuple[str, ...], says: str
) -> None:
    assert_start_fails(*serve_command(open_bundle.path), *flags, says=says)


def test_misspelt_variable_of_keys_stops_the_start(open_bundle: Bundle) -> None:
    assert_start_fails(
        *serve_command(open_bundle.path),
        says="ML_DECODER_PREDICT_KEY is not a setting; did you mean ML_DECODER_PREDICT_KEYS?",
        ML_DECODER_PREDICT_KEY="x" * 32,
    )


def test_auto_falls_back_to_the_cpu_and_logs_it(open_bundle: Bundle) -> None:
    with serve(open_bundle, "--device", "auto", CUDA_VISIBLE_DEVICES="") as (server, client):
        server.wait_for_line(r"WARNING.*cuda")
        assert client.get("/info").json()["runtime"]["device"] == "cpu"
        assert_still_serving(client)


def assert_start_fails(*command: str, says: str = "", **variables: str) -> None:
    with ServerProcess(*command, "--log-level", "error", **variables) as server:
        assert server.wait() == 2
        lines = server.stderr.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("ml-decoder: ")
    assert says in lines[0]


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "--user", "true"], check=False).returncode != 0,
    reason="no right to make a user namespace",
)
def test_user_without_a_home_folder_gets_predictions_and_one_line_about_the_store(
    open_bundle: Bundle, tmp_path: Path
) -> None:
    command = serve_command(open_bundle.path)
    for flag in ("--label-store", "--label-sets"):
        with HomelessServer(*command, flag, "~/labels") as refused:
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
    with (
        HomelessServer(*command, "--label-store", str(tmp_path / "labels.db")) as server,
        server.open_client() as client,
    ):
        assert client.post("/labels", json=body).status_code == 201
        assert_still_serving(client)
