"""Dashboards and alerts query existing metrics; every metric is documented."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.http.telemetry.metrics import Metrics, open_registry
from tests.support.serving import list_errors

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "monitoring"
DASHBOARD = json.loads((FOLDER / "grafana/dashboards/ml-decoder.json").read_text("utf-8"))
ALERTS = yaml.safe_load((FOLDER / "alerts.yml").read_text("utf-8"))
GUIDE = (ROOT / "docs" / "operate.md").read_text("utf-8")
REFERENCE = (ROOT / "docs" / "metrics.md").read_text("utf-8")
SUFFIXES = {"histogram": ("_bucket", "_count", "_sum"), "counter": ("_total",), "gauge": ("",)}
ROW = re.compile(r"^\| `(ml_decoder_\w+)` \| (\w+) \|([^|]*)\| .+ \|$", re.MULTILINE)


def find_labels() -> dict[str, tuple[str, ...]]:
    """Own metrics, by the name that is written in queries, with their labels."""
    metrics = Metrics()
    found: dict[str, tuple[str, ...]] = {}
    for collector in metrics.registry._collector_to_names:
        (metric,) = collector.collect()
        name = metric.name + ("_total" if metric.type == "counter" else "")
        found[name] = tuple(collector._labelnames)  # type: ignore[attr-defined]
    return found


METRICS = {metric.name: metric for metric in open_registry(Metrics()).collect()}
LABELS = find_labels()
SERIES = {
    f"{metric.name}{suffix}" for metric in METRICS.values() for suffix in SUFFIXES[metric.type]
}


RULES = {rule["alert"]: rule for group in ALERTS["groups"] for rule in group["rules"]}
SHOWN = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
EXPRESSIONS = [
    *SHOWN,
    *(variable["query"] for variable in DASHBOARD["templating"]["list"]),
    *(rule["expr"] for rule in RULES.values()),
]
ERRORS = list_errors()


def find_reasons(expression: str) -> set[str]:
    """The values of `reason` in a query."""
    found = re.findall(r'reason=~?"([\w|]+)"', expression)
    return {reason for reasons in found for reason in reasons.split("|")}


def test_every_queried_series_label_and_reason_exists() -> None:
    known = {"job", "instance", "le"}.union(*LABELS.values())
    for expression in EXPRESSIONS:
        series = set(re.findall(r"\b(?:ml_decoder|process|python)_\w+", expression))
        assert series <= SERIES, expression
        matched = re.findall(r"(\w+)=~?\"", expression)
        grouped = ",".join(re.findall(r"\bby \(([^)]*)\)", expression))
        assert {*matched, *re.findall(r"\w+", grouped)} <= known, expression
        assert find_reasons(expression) <= {error.code for error in ERRORS}, expression


def test_every_server_error_raises_the_alert() -> None:
    own = {error.code for error in ERRORS if error.status >= 500}
    # A client's slow URL is not our failure; the others have their own alerts.
    elsewhere = {"origin_timeout", "not_ready", "draining", "store_unavailable"}
    assert find_reasons(RULES["MlDecoderErrors"]["expr"]) == own - elsewhere


def test_every_own_metric_is_on_the_dashboard() -> None:
    shown = " ".join(SHOWN)
    assert {name for name in LABELS if not re.search(rf"\b{name}", shown)} == set()


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    places: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not places & cells
        assert max(x for x, _ in cells) < 24
        places |= cells


def test_metrics_table_lists_every_metric() -> None:
    documented = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in ROW.findall(REFERENCE)
    }
    existing = {
        name: (METRICS[name.removesuffix("_total")].type, labels) for name, labels in LABELS.items()
    }
    assert documented == existing


def test_every_alert_says_what_to_do() -> None:
    documented = set(re.findall(r"^\| `(MlDecoder\w+)` \| .+ \|$", GUIDE, re.MULTILINE))
    assert RULES.keys() == documented


def test_provisioning_finds_dashboard_and_rules() -> None:
    prometheus = yaml.safe_load((FOLDER / "prometheus.yml").read_text("utf-8"))
    assert all((FOLDER / name).is_file() for name in prometheus["rule_files"])
    (job,) = prometheus["scrape_configs"]
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]
    (names,) = job["dns_sd_configs"]
    assert set(names["names"]) <= compose.keys()
    provisioning = FOLDER / "grafana" / "provisioning"
    provider = yaml.safe_load((provisioning / "dashboards/ml-decoder.yml").read_text("utf-8"))
    (folder,) = [entry["options"]["path"] for entry in provider["providers"]]
    assert f"./deploy/monitoring/grafana/dashboards:{folder}:ro" in compose["grafana"]["volumes"]


def expect(alert: str, minutes: int, summary: str = "", **labels: str) -> dict[str, Any]:
    """Returns promtool's expectation of an alert with this summary; without one, of none."""
    labels |= {"job": "ml-decoder", "severity": "critical"}
    found = {"exp_labels": labels, "exp_annotations": {"summary": summary}}
    times = {"alertname": alert, "eval_time": f"{minutes}m"}
    return {**times, "exp_alerts": [found] if summary else []}


def test_promtool_accepts_configuration_and_rules_and_they_fire(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool: Debian's package prometheus has it")
    series = {
        'up{instance="a"': "1x4 0x26",
        # Of 100 requests, 2 fail and 4 are refused.
        'ml_decoder_request_seconds_count{method="POST"': "0+100x30",
        'ml_decoder_rejected_total{reason="inference_failed"': "0+2x30",
        'ml_decoder_rejected_total{reason="queue_full"': "0+4x30",
        'ml_decoder_rejected_total{reason="invalid_image"': "0+50x30",
    }
    case = {
        "interval": "1m",
        "input_series": [
            {"series": f'{name},job="ml-decoder"}}', "values": values}
            for name, values in series.items()
        ],
        "alert_rule_test": [
            expect("MlDecoderDown", 4),
            expect("MlDecoderDown", 8, "a does not answer", instance="a"),
            expect("MlDecoderBusy", 20),
            expect("MlDecoderErrors", 20, "2% of the requests fail"),
        ],
    }
    rules = {"rule_files": [str(FOLDER / "alerts.yml")], "tests": [case]}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    config, tests = str(FOLDER / "prometheus.yml"), str(tmp_path / "rules.yml")
    for command in (["check", "config", config], ["test", "rules", tests]):
        done = subprocess.run([promtool, *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
