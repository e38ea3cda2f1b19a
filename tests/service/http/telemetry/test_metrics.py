"""Metrics: counters with a bounded number of series, and sampled gauges."""

import re
from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient

from service.bundle.reader import Bundle
from service.errors import StartError
from service.http.telemetry.metrics import Metrics
from service.pipeline.served import ServedPipeline
from service.settings import Settings
from tests.support.photos import make_photo
from tests.support.serving import send_image, send_images

BUNDLE = "open_bundle"
Read = Callable[..., float]


def sample(client: TestClient) -> None:
    """Samples now instead of waiting for the next sample."""
    state = client.app.state  # type: ignore[attr-defined]
    client.portal.call(state.metrics.sample, state.served)  # type: ignore[union-attr]


def read(client: TestClient, name: str, **labels: str) -> float:
    """Returns a metric's value; 0 without such a sample."""
    registry = client.app.state.registry  # type: ignore[attr-defined]
    return registry.get_sample_value(f"ml_decoder_{name}", labels) or 0.0


@pytest.fixture
def grown(client: TestClient) -> Read:
    """Returns by how much a metric has grown in this test."""
    metrics = client.app.state.registry.collect()  # type: ignore[attr-defined]
    before = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for metric in metrics
        for sample in metric.samples
    }

    def subtract(name: str, **labels: str) -> float:
        key = (f"ml_decoder_{name}", frozenset(labels.items()))
        return read(client, name, **labels) - before.get(key, 0.0)

    return subtract


def test_metrics_are_text_for_prometheus(client: TestClient) -> None:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert "# TYPE ml_decoder_request_seconds histogram" in answer.text
    assert "process_resident_memory_bytes" in answer.text


def test_every_photo_of_a_batch_is_counted_and_runs_add_up_to_them(
    client: TestClient, grown: Read
) -> None:
    send_images(client, [make_photo(seed) for seed in range(5)])
    route = {"method": "POST", "path": "/predict/batch", "status": "200"}
    assert grown("request_seconds_count", **route) == 1
    assert grown("decode_seconds_count") == grown("queue_seconds_count") == 5
    assert grown("batch_size_sum") == 5
    assert grown("batch_size_count") == grown("inference_seconds_count")
    for stage in ("decode", "queue", "inference"):
        assert grown(f"{stage}_seconds_sum") > 0


def test_path_is_the_template_and_unknown_paths_and_methods_share_one_series(
    client: TestClient, grown: Read
) -> None:
    for name in ("one", "two"):
        client.get(f"/labels/{name}")
        client.get(f"/nowhere/{name}")
    for method in ("BREW", "STEEP"):
        client.request(method, "/nowhere")
    for method, path in (("GET", "/labels/{name}"), ("GET", ""), ("other", "")):
        assert grown("request_seconds_count", method=method, path=path, status="404") == 2
    assert "nowhere" not in client.get("/metrics").text


def test_refused_request_is_counted_by_its_reason(client: TestClient, grown: Read) -> None:
    assert send_image(client, b"junk").status_code == 400
    client.get("/nowhere")
    assert grown("rejected_total", reason="invalid_image") == 1
    assert grown("rejected_total", reason="not_found") == 1
    assert grown("rejected_total", reason="queue_full") == 0


def test_in_flight_counts_only_the_scrape_on_an_idle_service(client: TestClient) -> None:
    send_image(client, b"junk")
    assert "ml_decoder_requests_in_flight 1.0" in client.get("/metrics").text
    assert read(client, "requests_in_flight") == 0


def test_client_that_left_is_counted() -> None:
    metrics = Metrics()
    metrics.count_request("POST", "/predict", 499, 0.2, None)
    assert metrics.registry.get_sample_value("ml_decoder_disconnects_total") == 1


def test_model_info_describes_what_runs(client: TestClient) -> None:
    sample(client)
    runs = {"device": "cpu", "provider": "CPUExecutionProvider", "precision": "fp32"}
    assert read(client, "model_info", model="tiny-open", version="1.0", **runs) == 1
    assert read(client, "ready") == 1


def test_labels_and_version_follow_the_store(client: TestClient) -> None:
    sample(client)
    assert read(client, "labels", origin="model") == 5
    assert read(client, "labels", origin="bundle") == 3
    before = read(client, "label_set_version")
    client.post("/labels", json={"name": "zoo", "labels": ["panda", "keeper"]})
    sample(client)
    assert read(client, "labels", origin="store") == 2
    assert read(client, "label_sets", origin="store") == 1
    assert read(client, "label_set_version") == before + 1
    assert read(client, "label_store_up") == 1
    client.delete("/labels/zoo")
    sample(client)
    assert read(client, "labels", origin="store") == 0


def test_missing_shared_folder_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "/nowhere")
    with pytest.raises(StartError, match="must be an existing, writable folder; it is /nowhere"):
        Metrics()


def test_loading_service_is_not_ready_and_has_an_empty_queue(tiny_bundle: Bundle) -> None:
    metrics = Metrics()
    metrics.sample(ServedPipeline(Settings(bundle=tiny_bundle.path)))
    assert metrics.registry.get_sample_value("ml_decoder_ready") == 0
    assert metrics.registry.get_sample_value("ml_decoder_queue_size") == 0


def test_template_of_every_route_has_its_whole_path(client: TestClient) -> None:
    templates = set(client.app.openapi()["paths"])  # type: ignore[attr-defined]
    for template in templates:
        client.get(re.sub(r"{\w+}", "x", template))
    counted = re.findall(r'request_seconds_count{.*path="([^"]+)"', client.get("/metrics").text)
    assert templates - {"/metrics"} <= set(counted)
