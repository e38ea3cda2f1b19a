"""Dashboards and alerts query existing metrics; every metric is documented."""

import json
import re
import shutil
import subprocess
from pathlib import Path

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
    labels: dict[str, tuple[str, ...]] = {}
    for collector in metrics.registry._collector_to_names:
        (metric,) = collector.collect()
        name = metric.name + ("_total" if metric.type == "counter" else "")
        labels[name] = tuple(collector._labelnames)  # type: ignore[attr-defined]
    return labels


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
    matches = re.findall(r'reason=~?"([\w|]+)"', expression)
    return {reason for reasons in matches for reason in reasons.split("|")}


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


def test_promtool_accepts_configuration_and_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool: Debian's package prometheus has it")
    command = [promtool, "check", "config", str(FOLDER / "prometheus.yml")]  # and its rules
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
