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
from cloudcoil.models.prometheus_operator.v1 import ServiceMonitor

from service.settings import Settings

ROOT = Path(__file__).parents[2]
K8S = ROOT / "deploy" / "k8s"
# The oldest supported minor version; newer ones know the same keys.
VERSION = "1.31"
CUSTOM = {"ScaledObject": ScaledObject, "ServiceMonitor": ServiceMonitor}
QUEUE_METRIC = "ml_decoder_queue_size"
COMMON = {"Namespace", "Deployment", "Service", "PodDisruptionBudget", "ServiceMonitor"}
STATE = "/var/lib/ml-decoder"
KINDS = {
    "base": COMMON | {"HorizontalPodAutoscaler"},
    "keda": COMMON | {"ScaledObject"},
    "minimal": {"Namespace", "Deployment", "Service", "PersistentVolumeClaim"},
}


@cache
def render(folder: str) -> dict[str, Any]:
    """The objects that `kubectl apply -k` would apply, by kind."""
    kubectl = Path(sys.executable).with_name("kubectl")
    command = [str(kubectl), "kustomize", str(K8S / folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {document["kind"]: document for document in yaml.safe_load_all(done.stdout)}


@cache
def read_predictor() -> dict[str, Any]:
    """The pod of the KServe file."""
    document = yaml.safe_load((K8S / "kserve/inferenceservice.yaml").read_text())
    return dict(document["spec"]["predictor"])


@cache
def read_pod() -> dict[str, Any]:
    return dict(render("base")["Deployment"]["spec"]["template"]["spec"])


@cache
def read_minimal() -> dict[str, Any]:
    return dict(render("minimal")["Deployment"]["spec"]["template"]["spec"])


def check_custom(document: dict[str, Any]) -> None:
    """Checks a custom resource; an unknown key is an error."""
    model = CUSTOM[document["kind"]].model_validate(document)
    read = model.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert read == document


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["containers"]
    return dict(only)


@pytest.fixture(params=[read_pod, read_predictor, read_minimal])
def pod(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.mark.parametrize("folder", KINDS)
def test_kustomization_renders_these_objects_and_each_matches_its_schema(folder: str) -> None:
    documents = render(folder)
    assert set(documents) == KINDS[folder]
    for kind, document in documents.items():
        if kind in CUSTOM:
            check_custom(document)
        else:
            kubernetes_validate.validate(document, VERSION, strict=True)


def test_misspelt_keys_are_refused() -> None:
    documents = render("keda")
    service = documents["Service"] | {"spec": {"portz": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(service, VERSION, strict=True)
    monitor = documents["ServiceMonitor"]
    with pytest.raises(AssertionError):
        check_custom(monitor | {"spec": monitor["spec"] | {"endpointz": []}})


def test_everything_selects_the_pods_of_the_deployment() -> None:
    documents = render("base")
    labels = documents["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert documents["Service"]["spec"]["selector"].items() <= labels.items()
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert documents[kind]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    monitored = documents["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
    assert monitored.items() <= documents["Service"]["metadata"]["labels"].items()
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


def test_pod_runs_without_root_and_writes_only_to_tmp_and_its_volume(pod: dict[str, Any]) -> None:
    security = pod.get("securityContext", {}) | container(pod)["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] == 10001
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    folders = ["/tmp"] if pod != read_minimal() else [STATE, "/tmp"]
    assert [mount["mountPath"] for mount in container(pod)["volumeMounts"]] == folders


def test_minimal_needs_no_object_that_it_does_not_have() -> None:
    documents = render("minimal")
    assert all("." not in each["apiVersion"].partition("/")[0] for each in documents.values())
    pod = read_minimal()
    (state, _) = pod["volumes"]
    claim = documents["PersistentVolumeClaim"]
    assert state["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert "storageClassName" not in claim["spec"]
    sources = [each["valueFrom"] for each in container(pod)["env"] if "valueFrom" in each]
    assert all(source["secretKeyRef"]["optional"] for source in sources)
    # Everything else that a pod can refer to.
    assert not {"envFrom", "serviceAccountName", "imagePullSecrets"} & (pod | container(pod)).keys()


def test_minimal_keeps_label_sets_of_one_pod_at_a_time_in_the_volume() -> None:
    deployment = render("minimal")["Deployment"]["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    assert read_minimal()["securityContext"]["fsGroup"] == 10001
    assert "ML_DECODER_LABEL_STORE" not in {
        each["name"] for each in container(read_minimal())["env"]
    }
    image = (ROOT / "Dockerfile").read_text()
    assert f"ML_DECODER_LABEL_STORE={STATE}/" in image


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


def test_minimal_publishes_no_metrics() -> None:
    given = {each["name"]: each.get("value") for each in container(read_minimal())["env"]}
    ports = {each["name"]: each["containerPort"] for each in container(read_minimal())["ports"]}
    assert given["ML_DECODER_METRICS_PORT"] == str(ports["metrics"])
    assert [port["targetPort"] for port in render("minimal")["Service"]["spec"]["ports"]] == [
        "http"
    ]


def test_probes_route_on_readiness_and_restart_on_death_alone(pod: dict[str, Any]) -> None:
    assert container(pod)["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container(pod)["livenessProbe"]["httpGet"]["path"] == "/livez"


def test_request_bodies_leave_memory_for_model_and_photos(pod: dict[str, Any]) -> None:
    given = {each["name"]: each["value"] for each in container(pod)["env"] if "value" in each}
    held = Settings(max_held_bytes=given["ML_DECODER_MAX_HELD_BYTES"]).max_held_bytes
    limit = container(pod)["resources"]["limits"]["memory"]
    # Measured: the model 300 MiB, the largest photos all at once 700 MiB.
    assert held * 8 <= int(limit.removesuffix("Gi")) * 1024**3


def test_kserve_pod_needs_no_knative_feature_flags() -> None:
    assert "securityContext" not in read_predictor()
    assert "runAsGroup" not in container(read_predictor())["securityContext"]


def test_variables_are_settings_and_service_links_are_not(pod: dict[str, Any]) -> None:
    for variable in container(pod)["env"]:
        assert variable["name"].removeprefix("ML_DECODER_").lower() in Settings.model_fields
    # Otherwise Kubernetes sets `ML_DECODER_PORT` and others for a Service `ml-decoder`.
    assert pod["enableServiceLinks"] is False


def test_pod_has_time_to_drain_after_it_leaves_the_endpoints() -> None:
    _, pause = container(read_pod())["lifecycle"]["preStop"]["exec"]["command"]
    drain = Settings.model_fields["drain_seconds"].default
    assert read_pod()["terminationGracePeriodSeconds"] >= int(pause) + drain + 5


def test_kserve_pod_matches_the_pod_schema() -> None:
    predictor = dict(read_predictor())
    kserve = ("minReplicas", "maxReplicas", "scaleMetric", "scaleTarget")
    for key in (*kserve, "containerConcurrency", "timeout"):
        assert predictor.pop(key)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": predictor}
    kubernetes_validate.validate(pod, VERSION, strict=True)


def test_kserve_clients_find_the_model_by_the_name_of_the_inferenceservice() -> None:
    document = yaml.safe_load((K8S / "kserve/inferenceservice.yaml").read_text())
    alias = {"name": "ML_DECODER_MODEL_ALIAS", "value": document["metadata"]["name"]}
    assert alias in container(read_predictor())["env"]


def test_example_secret_has_the_keys_that_pods_read(pod: dict[str, Any]) -> None:
    secrets = list(yaml.safe_load_all((K8S / "secret.example.yaml").read_text()))
    for secret in secrets:
        kubernetes_validate.validate(secret, VERSION, strict=True)
    given = {
        (secret["metadata"]["name"], key) for secret in secrets for key in secret["stringData"]
    }
    taken = [each["valueFrom"] for each in container(pod)["env"] if "valueFrom" in each]
    references = [each["secretKeyRef"] for each in taken]
    asked = {(each["name"], each["key"]): each.get("optional", False) for each in references}
    store = {} if pod == read_minimal() else {("ml-decoder-label-store", "url"): False}
    keys = {("ml-decoder-keys", "predict"): True, ("ml-decoder-keys", "admin"): True}
    assert asked == store | keys
    assert asked.keys() <= given
