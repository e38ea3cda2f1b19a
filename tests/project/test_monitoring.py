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


needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed"
)


def run_promtool(*arguments: str) -> str:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
def test_promtool_accepts_configuration_and_rules() -> None:
    printed = run_promtool("check", "config", str(FOLDER / "prometheus.yml"))
    assert f"{len(RULES)} rules found" in printed


@needs_promtool
@pytest.mark.parametrize(
    ("versions", "alarms"),
    [
        # Replicas are scraped one after the other during registrations.
        (("0+10x60", "0 0+10x59"), 0),
        # A replica that never catches up.
        (("7x60", "7x10 5x50"), 1),
        # The store was restored to an earlier version.
        (("7x30 5x30", "7x30 5x30"), 0),
    ],
)
def test_replica_lag_alert_fires_only_when_it_lasts(
    versions: tuple[str, str], alarms: int, tmp_path: Path
) -> None:
    series = {
        f'{name}{{job="ml-decoder", instance="{index}"}}': values
        for index, version in enumerate(versions)
        for name, values in (
            ("ml_decoder_label_set_version", version),
            ("ml_decoder_ready", "1x60"),
        )
    }
    check_alarms("MlDecoderLabelSetsDiffer", series, alarms, tmp_path)


@needs_promtool
@pytest.mark.parametrize(("failing", "alarms"), [(0, 0), (1, 1)])
def test_failed_predictions_raise_the_alert_among_many_probes(
    failing: int, alarms: int, tmp_path: Path
) -> None:
    count = 'ml_decoder_request_seconds_count{job="ml-decoder"'
    series = {
        f'{count}, method="POST", path="/predict", status="504"}}': "0+1x60",
        f'{count}, method="GET", path="/readyz", status="200"}}': "0+1000x60",
    }
    rejected = 'ml_decoder_rejected_total{job="ml-decoder", reason="deadline_exceeded"}'
    series[rejected] = f"0+{failing}x60"
    check_alarms("MlDecoderErrors", series, alarms, tmp_path, "100% of the requests fail")


@needs_promtool
@pytest.mark.parametrize(
    ("starts", "alarms"),
    # The second one is an update.
    [("100x60", 0), ("100x10 200x50", 0), ("100x5 200x5 300x5 400x45", 1)],
)
def test_crash_loop_raises_the_alert(starts: str, alarms: int, tmp_path: Path) -> None:
    series = {'process_start_time_seconds{job="ml-decoder", instance="a"}': starts}
    summary = "a was started anew 3 times in 15 minutes"
    check_alarms("MlDecoderRestarts", series, alarms, tmp_path, summary, instance="a")


def check_alarms(
    name: str,
    series: dict[str, str],
    alarms: int,
    folder: Path,
    summary: str | None = None,
    **labels: str,
) -> None:
    """Checks how many alarms, with the rule's summary or another, rise from minute 5 to 7.

    `series` has one value every 10 s.
    """
    alert = RULES[name]
    alarm = {
        "exp_labels": {"job": "ml-decoder", **labels, **alert["labels"]},
        "exp_annotations": alert["annotations"] if summary is None else {"summary": summary},
    }
    test = {
        "interval": "10s",
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "alert_rule_test": [
            {"eval_time": f"{seconds}s", "alertname": name, "exp_alerts": [alarm] * alarms}
            for seconds in range(310, 400, 10)
        ],
    }
    rules = {"rule_files": [str(FOLDER / "alerts.yml")], "evaluation_interval": "10s"}
    file = folder / "rules.yml"
    file.write_text(yaml.safe_dump(rules | {"tests": [test]}))
    run_promtool("test", "rules", str(file))
