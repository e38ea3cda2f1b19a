"""The Kubernetes files, rendered by kubectl and checked against the schemas of their kinds."""

import subprocess
import sys
from functools import cache
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from cloudcoil.models.keda.v1alpha1 import ScaledObject
from cloudcoil.models.prometheus_operator.v1 import PodMonitor, PrometheusRule

from service.settings import Settings

ROOT = Path(__file__).parents[2]
K8S = ROOT / "deploy" / "k8s"
# The oldest supported minor version; newer ones know the same keys.
VERSION = "1.31"
CUSTOM = {each.__name__: each for each in (PodMonitor, PrometheusRule, ScaledObject)}
QUEUE_METRIC = "ml_decoder_queue_size"
APPLIED = {"Namespace", "Deployment", "Service", "NetworkPolicy"}
COMMON = APPLIED | {"PodDisruptionBudget", "PodMonitor", "PrometheusRule"}
STATE = "/var/lib/ml-decoder"
KEYS = "/etc/ml-decoder/keys"
METRICS_PORT = 9100
STORE = ("ml-decoder-label-store", "url")
KINDS = {
    "base": COMMON | {"HorizontalPodAutoscaler"},
    "keda": COMMON | {"ScaledObject"},
    "minimal": APPLIED | {"PersistentVolumeClaim"},
}


@cache
def render(folder: str) -> dict[str, Any]:
    """The objects that `kubectl apply -k` would apply, by kind."""
    kubectl = Path(sys.executable).with_name("kubectl")
    command = [str(kubectl), "kustomize", str(K8S / folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {document["kind"]: document for document in yaml.safe_load_all(done.stdout)}


def read_predictor() -> dict[str, Any]:
    """The pod of the KServe file."""
    document = yaml.safe_load((K8S / "kserve/inferenceservice.yaml").read_text())
    return dict(document["spec"]["predictor"])


def read_pod(folder: str = "base") -> dict[str, Any]:
    return dict(render(folder)["Deployment"]["spec"]["template"]["spec"])


def read_minimal() -> dict[str, Any]:
    return read_pod("minimal")


def check_custom(document: dict[str, Any]) -> None:
    """Checks a custom resource; an unknown key is an error."""
    model = CUSTOM[document["kind"]].model_validate(document)
    read = model.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert read == document


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["containers"]
    return dict(only)


def read_variables(pod: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container(pod)["env"] if "value" in each}


def read_secrets(pod: dict[str, Any]) -> list[dict[str, Any]]:
    sources = [each["valueFrom"] for each in container(pod)["env"] if "valueFrom" in each]
    return [source["secretKeyRef"] for source in sources]


@pytest.fixture(params=[read_pod, read_predictor, read_minimal])
def pod(request: pytest.FixtureRequest) -> Any:
    return request.param()


def test_kustomization_renders_its_objects_and_each_matches_its_schema() -> None:
    for folder, kinds in KINDS.items():
        documents = render(folder)
        assert set(documents) == kinds, folder
        for kind, document in documents.items():
            if kind in CUSTOM:
                check_custom(document)
            else:
                kubernetes_validate.validate(document, VERSION, strict=True)


def test_everything_selects_the_pods_of_the_deployment() -> None:
    documents = render("base")
    labels = documents["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert documents["Service"]["spec"]["selector"].items() <= labels.items()
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert documents[kind]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    monitor = documents["PodMonitor"]["spec"]
    for selector in (monitor["selector"], documents["NetworkPolicy"]["spec"]["podSelector"]):
        assert selector["matchLabels"].items() <= labels.items()
    # The job that the alerts name.
    assert labels[monitor["jobLabel"]] == "ml-decoder"
    for kind, target in (("HorizontalPodAutoscaler", "base"), ("ScaledObject", "keda")):
        scaled = render(target)[kind]["spec"]["scaleTargetRef"]["name"]
        assert scaled == documents["Deployment"]["metadata"]["name"]


def test_both_autoscalers_follow_the_same_queue() -> None:
    (metric,) = render("base")["HorizontalPodAutoscaler"]["spec"]["metrics"]
    (trigger,) = render("keda")["ScaledObject"]["spec"]["triggers"]
    adapter = yaml.safe_load((K8S / "prometheus-adapter.yaml").read_text())
    assert metric["pods"]["metric"]["name"] == QUEUE_METRIC
    assert adapter["rules"]["custom"][0]["name"]["matches"] == QUEUE_METRIC
    assert QUEUE_METRIC in trigger["metadata"]["query"]
    assert metric["pods"]["target"]["averageValue"] == trigger["metadata"]["threshold"]


def test_operator_has_the_alerts_of_other_installations() -> None:
    alerts = yaml.safe_load((ROOT / "deploy/monitoring/alerts.yml").read_text(encoding="utf-8"))
    assert render("base")["PrometheusRule"]["spec"] == alerts


def test_pod_runs_without_root_and_writes_only_to_tmp_and_its_volume(pod: dict[str, Any]) -> None:
    security = pod.get("securityContext", {}) | container(pod)["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] == 10001
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    folders = ["/tmp"] if pod != read_minimal() else [STATE, "/tmp"]
    mounts = container(pod)["volumeMounts"]
    assert [each["mountPath"] for each in mounts if not each.get("readOnly")] == folders


def test_minimal_needs_no_object_that_it_does_not_have() -> None:
    documents = render("minimal")
    assert all("coreos" not in each["apiVersion"] for each in documents.values())
    pod = read_minimal()
    (state, _, _) = pod["volumes"]
    claim = documents["PersistentVolumeClaim"]
    assert state["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert "storageClassName" not in claim["spec"]
    assert not read_secrets(pod)
    # Everything else that a pod can refer to.
    assert not {"envFrom", "serviceAccountName", "imagePullSecrets"} & (pod | container(pod)).keys()


def test_minimal_keeps_label_sets_of_one_pod_at_a_time() -> None:
    deployment = render("minimal")["Deployment"]["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    assert read_minimal()["securityContext"]["fsGroup"] == 10001
    assert "ML_DECODER_LABEL_STORE" not in read_variables(read_minimal())
    image = (ROOT / "Dockerfile").read_text()
    assert f"ML_DECODER_LABEL_STORE={STATE}/" in image


def test_metrics_have_a_port_that_no_service_publishes(pod: dict[str, Any]) -> None:
    # tests/e2e/test_metrics.py: with this setting, port 8000 has none.
    assert read_variables(pod)["ML_DECODER_METRICS_PORT"] == str(METRICS_PORT)
    ports = {each["name"]: each["containerPort"] for each in container(pod)["ports"]}
    if pod == read_predictor():
        assert list(ports.values()) == [8000]  # Knative publishes the only one
        return
    assert ports == {"http": 8000, "metrics": METRICS_PORT}
    for folder in KINDS:
        published = render(folder)["Service"]["spec"]["ports"]
        assert [port["targetPort"] for port in published] == ["http"]
    (scraped,) = render("base")["PodMonitor"]["spec"]["podMetricsEndpoints"]
    assert scraped["port"] == "metrics"


def test_network_policy_admits_prometheus_to_metrics_only_and_needs_no_labels_of_others() -> None:
    policy = render("base")["NetworkPolicy"]["spec"]
    service, metrics = policy["ingress"]
    assert [each["port"] for rule in (service, metrics) for each in rule["ports"]] == [8000, 9100]
    assert [list(each) for each in metrics["from"]] == [["namespaceSelector"]]
    # Kustomize adds the pods' label to other selectors of pods.
    assert [each["podSelector"] for each in service["from"] if "podSelector" in each] == [{}]
    (urls,) = [rule for rule in policy["egress"] if {"port": 443} in rule["ports"]]
    for target in urls["to"]:
        block = ip_network(target["ipBlock"]["cidr"])
        parts = map(ip_network, target["ipBlock"]["except"])
        assert all(part.subnet_of(block) and not part.is_global for part in parts)


def test_ingress_leads_to_the_service_and_lets_bodies_pass() -> None:
    ingress = yaml.safe_load((K8S / "ingress.example.yaml").read_text())
    kubernetes_validate.validate(ingress, VERSION, strict=True)
    service = render("minimal")["Service"]
    assert ingress["metadata"]["namespace"] == service["metadata"]["namespace"]
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert path["backend"]["service"]["name"] == service["metadata"]["name"]
    assert path["backend"]["service"]["port"]["name"] == service["spec"]["ports"][0]["name"]
    assert [rule["host"]] == ingress["spec"]["tls"][0]["hosts"]
    notes = ingress["metadata"]["annotations"]
    size = int(notes["nginx.ingress.kubernetes.io/proxy-body-size"].removesuffix("m"))
    assert size * 1024**2 > Settings.model_fields["max_body_bytes"].default


def test_request_bodies_leave_memory_for_model_and_photos(pod: dict[str, Any]) -> None:
    given = read_variables(pod)["ML_DECODER_MAX_HELD_BYTES"]
    held = Settings(max_held_bytes=given).max_held_bytes
    limit = container(pod)["resources"]["limits"]["memory"]
    # Measured: the model 300 MiB, the largest photos all at once 700 MiB.
    assert held * 8 <= int(limit.removesuffix("Gi")) * 1024**3


def test_pod_has_probes_and_only_variables_that_are_settings(pod: dict[str, Any]) -> None:
    assert container(pod)["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container(pod)["livenessProbe"]["httpGet"]["path"] == "/livez"
    for variable in container(pod)["env"]:
        assert variable["name"].removeprefix("ML_DECODER_").lower() in Settings.model_fields
    # Otherwise Kubernetes sets `ML_DECODER_PORT` and others for a Service `ml-decoder`.
    assert pod["enableServiceLinks"] is False


def test_pod_has_time_to_drain_after_it_leaves_the_endpoints() -> None:
    _, pause = container(read_pod())["lifecycle"]["preStop"]["exec"]["command"]
    drain = Settings.model_fields["drain_seconds"].default
    assert read_pod()["terminationGracePeriodSeconds"] >= int(pause) + drain + 5


def test_kserve_pod_matches_the_pod_schema_without_knative_feature_flags() -> None:
    predictor = read_predictor()
    kserve = ("minReplicas", "maxReplicas", "scaleMetric", "scaleTarget")
    for key in (*kserve, "containerConcurrency", "timeout"):
        assert predictor.pop(key)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": predictor}
    kubernetes_validate.validate(pod, VERSION, strict=True)
    assert "securityContext" not in predictor
    assert "runAsGroup" not in container(predictor)["securityContext"]
    # Clients name the model as the InferenceService.
    document = yaml.safe_load((K8S / "kserve/inferenceservice.yaml").read_text())
    assert read_variables(predictor)["ML_DECODER_MODEL_ALIAS"] == document["metadata"]["name"]


def test_example_secret_has_the_keys_that_pods_read(pod: dict[str, Any]) -> None:
    secrets = list(yaml.safe_load_all((K8S / "secret.example.yaml").read_text()))
    for secret in secrets:
        kubernetes_validate.validate(secret, VERSION, strict=True)
    given = {
        (secret["metadata"]["name"], key) for secret in secrets for key in secret["stringData"]
    }
    asked = {(each["name"], each["key"]) for each in read_secrets(pod)}
    (keys,) = [each["secret"] for each in pod["volumes"] if "secret" in each]
    (mount,) = [each for each in container(pod)["volumeMounts"] if each["mountPath"] == KEYS]
    # The whole folder: a `subPath` is not updated. Not optional: without keys, all is permitted.
    assert (mount["readOnly"], mount.keys()) == (True, {"name", "mountPath", "readOnly"})
    assert keys.keys() == {"secretName"}
    for right in ("predict", "admin"):
        assert read_variables(pod)[f"ML_DECODER_{right.upper()}_KEYS"] == f"@{KEYS}/{right}"
        asked.add((keys["secretName"], right))
    assert asked == given - ({STORE} if pod == read_minimal() else set())
