"""The Kubernetes files, rendered by kubectl and checked against the schemas of their kinds."""

import subprocess
import sys
from functools import cache
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
APPLIED = {"Namespace", "Deployment", "Service", "NetworkPolicy"}
COMMON = APPLIED | {"PodDisruptionBudget", "PodMonitor", "PrometheusRule"}
STATE = "/var/lib/ml-decoder"
KEYS = "/etc/ml-decoder/keys"
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


def test_pod_has_probes_and_only_variables_that_are_settings(pod: dict[str, Any]) -> None:
    assert container(pod)["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container(pod)["livenessProbe"]["httpGet"]["path"] == "/livez"
    for variable in container(pod)["env"]:
        assert variable["name"].removeprefix("ML_DECODER_").lower() in Settings.model_fields
    # Otherwise Kubernetes sets `ML_DECODER_PORT` and others for a Service `ml-decoder`.
    assert pod["enableServiceLinks"] is False


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
