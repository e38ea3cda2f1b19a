"""Ray Serve and Ray Data on a small local cluster give the same answers as without Ray."""

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from service.bundle.reader import Bundle
from service.cli.commands import app
from tests.scale.ray_cluster import ROOT, START_SECONDS, RayCluster
from tests.service.cli.bulk.test_command import TOTALS
from tests.support.nginx import find_free_port
from tests.support.photos import make_photo, write_photos
from tests.support.serving import labels_of, send_image
from tests.support.threads import wait_until

CONFIG = ROOT / "deploy" / "ray" / "serve.yaml"
PHOTOS = 24
# Batches differ in size, so scores differ in the last digits.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed (extra `ray`)")
    # A socket's path is limited to 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        running = RayCluster(Path(folder), cpus=3)
        yield running
        running.stop()


def fill_in(config: dict[str, Any], bundle: Bundle, port: int) -> dict[str, Any]:
    """The deployed configuration with a free port, a tiny bundle and one small replica."""
    config["http_options"] |= {"host": "127.0.0.1", "port": port}
    (deployment,) = config["applications"][0]["deployments"]
    deployment["autoscaling_config"] |= {"max_replicas": 1}
    deployment["ray_actor_options"]["num_cpus"] = 1
    variables = deployment["ray_actor_options"]["runtime_env"]["env_vars"]
    variables |= {"ML_DECODER_BUNDLE": str(bundle.path), "PYTHONPATH": str(ROOT)}
    return config


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.HTTPError:
        return False


def test_ray_serve_answers_like_the_service(
    cluster: RayCluster, open_bundle: Bundle, tmp_path: Path
) -> None:
    port = find_free_port()
    config = tmp_path / "serve.yaml"
    deployed = yaml.safe_load(CONFIG.read_text())
    config.write_text(yaml.safe_dump(fill_in(deployed, open_bundle, port)))
    with (
        cluster.serving(config),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        wait_until(lambda: is_ready(client), START_SECONDS)
        answer = send_image(client, make_photo(1), params={"top_k": 5})
        here = pytest.approx(predict_here(open_bundle, tmp_path), abs=TOLERANCE)
        assert dict(labels_of(answer)) == here
        assert answer.json()["model"]["name"] == open_bundle.card.name
        assert answer.headers.get_list("x-request-id") == [answer.json()["request_id"]]
        made = client.post("/labels", json={"name": "mine", "labels": ["red", "blue"]})
        assert made.status_code == 201
        asked = {"label_set": "mine", "threshold": "0"}
        mine = send_image(client, make_photo(1), params=asked)
        assert {label for label, _ in labels_of(mine)} == {"red", "blue"}
        assert client.get("/metrics").status_code == 404
        refused = send_image(client, b"junk")
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_image")


def predict_here(bundle: Bundle, folder: Path) -> dict[str, float]:
    photo = write_photos(folder, 2)[1]
    command = ["predict", "--json", "--top-k", "5", "--device", "cpu"]
    done = CliRunner().invoke(app, [*command, "--bundle", str(bundle.path), str(photo)])
    return {label["label"]: label["score"] for label in json.loads(done.stdout)["labels"]}


def test_ray_data_tags_every_photo_once_and_resumes(
    cluster: RayCluster, open_bundle: Bundle, tmp_path: Path
) -> None:
    photos, out = tmp_path / "photos", tmp_path / "out"
    write_photos(photos, PHOTOS)
    (photos / "bad.jpg").write_bytes(b"junk")
    first = run_bulk(cluster, open_bundle, photos, out)
    assert first == TOTALS | {"tagged": PHOTOS, "failed": 1}

    # As after a kill before the last part.
    lost = min(out.glob("part-*.parquet"))
    rows = pq.read_table(lost).num_rows
    lost.unlink()
    again = run_bulk(cluster, open_bundle, photos, out)
    assert again["tagged"] + again["failed"] == rows
    assert again["skipped"] == PHOTOS + 1 - rows

    table = pq.read_table(out)
    names = table.column("photo").to_pylist()
    assert sorted(names) == sorted(path.name for path in photos.iterdir())
    errors = dict(zip(names, table.column("error").to_pylist(), strict=True))
    assert [name for name, error in errors.items() if error] == ["bad.jpg"]

    (tmp_path / "link").symlink_to(photos)
    named = start_bulk(cluster, open_bundle, tmp_path / "link", out, "--retry-failed").stderr
    assert "bad.jpg was not tagged: The file is damaged or is not an image" in named
    (photos / "bad.jpg").write_bytes(make_photo(PHOTOS))
    mended = run_bulk(cluster, open_bundle, photos, out, "--retry-failed")
    assert (mended["tagged"], mended["skipped"]) == (1, PHOTOS)
    assert pq.read_table(out).num_rows == PHOTOS + 1


def test_worker_larger_than_every_node_fails_at_once(
    cluster: RayCluster, open_bundle: Bundle, tmp_path: Path
) -> None:
    write_photos(tmp_path / "photos", 1)
    folders = tmp_path / "photos", tmp_path / "out"
    done = start_bulk(cluster, open_bundle, *folders, "--intra-op-threads", "9")
    assert done.returncode == 2
    assert "no node of the cluster has the 9 CPUs and 0 GPUs of a worker" in done.stderr


def run_bulk(
    cluster: RayCluster, bundle: Bundle, photos: Path, out: Path, *flags: str
) -> dict[str, int]:
    done = start_bulk(cluster, bundle, photos, out, *flags)
    assert done.returncode in (0, 1), done.stderr
    totals: dict[str, int] = json.loads(done.stdout)
    return totals


def start_bulk(
    cluster: RayCluster, bundle: Bundle, photos: Path, out: Path, *flags: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "service.cli", "bulk", str(photos), str(out), "--json"]
    options = ("--ray", "--workers", "2", "--part-size", "5", "--top-k", "2", "--device", "cpu")
    return subprocess.run(
        [*command, *options, "--bundle", str(bundle.path), "--label-store", "memory", *flags],
        cwd=ROOT,
        env=cluster.environment,
        capture_output=True,
        text=True,
        check=False,
    )
