"""The manifests of kubernetes/ and the Containerfile agree with the configuration's numbers, with
each other, and with the schemas of Kubernetes."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from batchpool.core.config.toml_file import load_toml
from batchpool.core.metrics.table import METRICS
from batchpool.tasks.redis_address import PASSWORD_VARIABLE

ROOT = Path(__file__).parents[2]
BASE = "base"
SHARED = "overlays/shared-tasks"
KEDA = "overlays/shared-tasks-keda"
OVERLAYS = ("overlays/gpu", "overlays/tasks", SHARED, KEDA, "overlays/local-clients")
OLDEST = "1.30"  # of Kubernetes, for which they are checked, beside the newest one
KUBECTL = shutil.which("kubectl")
pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl, which builds them, is missing")


@cache
def built(folder: str) -> tuple[dict[str, Any], ...]:
    """The objects of a folder with a kustomization, as `kubectl apply -k` would send them."""
    command = [str(KUBECTL), "kustomize", str(ROOT / "kubernetes" / folder)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return tuple(yaml.safe_load_all(run.stdout))


def the(folder: str, kind: str) -> dict[str, Any]:
    (found,) = [each for each in built(folder) if each["kind"] == kind]
    return found


def pod(folder: str) -> dict[str, Any]:
    spec: dict[str, Any] = the(folder, "Deployment")["spec"]["template"]["spec"]
    return spec


def pool(folder: str) -> dict[str, Any]:
    """The container of the pool, of which there is one."""
    (found,) = [each for each in pod(folder)["containers"] if each["name"] == "batchpool"]
    return found


def server(folder: str) -> Any:
    """The [server] table of the configuration in a folder's manifests."""
    return load_toml(the(folder, "ConfigMap")["data"]["batchpool.toml"], "batchpool.toml").server


def mounted(folder: str) -> dict[str, dict[str, Any]]:
    """The volumes by the path at which the pool has them."""
    volumes = {volume["name"]: volume for volume in pod(folder)["volumes"]}
    return {each["mountPath"]: volumes[each["name"]] for each in pool(folder)["volumeMounts"]}


def most_s(probe: dict[str, Any]) -> int:
    """The seconds that a probe may fail before it has failed."""
    return int(probe["periodSeconds"]) * int(probe["failureThreshold"])


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
@pytest.mark.parametrize("folder", [BASE, *OVERLAYS])
def test_every_object_fits_its_schema(folder: str, version: str) -> None:
    for each in built(folder):
        if each["kind"] != "ScaledObject":  # of KEDA, whose schema is not among those
            kubernetes_validate.validate(each, version, strict=True)


def test_the_schemas_refuse_an_unknown_field() -> None:
    wrong = {**the(BASE, "Service"), "spec": {"port": 80}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, OLDEST, strict=True)


@pytest.mark.parametrize("folder", [BASE, *OVERLAYS])
def test_the_end_has_time_for_proxies_requests_and_models(folder: str) -> None:
    command = pool(folder)["lifecycle"]["preStop"]["exec"]["command"]
    assert command[0] == "sleep"
    needed_s = int(command[1]) + server(folder).drain_s + server(folder).unload_timeout_s
    grace_s = pod(folder)["terminationGracePeriodSeconds"]
    assert needed_s + 5 <= grace_s <= needed_s + 30


@pytest.mark.parametrize("folder", [BASE, *OVERLAYS])
def test_probes_wait_for_models_and_for_what_the_pool_mends_itself(folder: str) -> None:
    container, settings = pool(folder), server(folder)
    assert most_s(container["startupProbe"]) >= settings.load_timeout_s
    assert most_s(container["livenessProbe"]) > 2 * settings.stall_timeout_s
    paths = [container[name]["httpGet"] for name in ("startupProbe", "readinessProbe")]
    assert {each["path"] for each in paths} == {"/v2/health/ready"}
    assert container["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"
    (port,) = container["ports"]
    assert port == {"name": "http", "containerPort": settings.port}
    assert the(folder, "Service")["spec"]["ports"][0]["targetPort"] == port["name"]


@pytest.mark.parametrize("folder", [BASE, *OVERLAYS])
def test_what_the_pool_writes_stands_on_volumes(folder: str) -> None:
    container, settings, volumes = pool(folder), server(folder), mounted(folder)
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert settings.host == "", "another pod reaches the address of this one"
    assert str(Path(settings.socket).parent) in volumes
    assert settings.state_dir in volumes
    assert volumes["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    assert container["args"][1].startswith("/etc/batchpool/")


def test_the_budget_and_the_update_leave_a_pod_that_serves() -> None:
    deployment = the(BASE, "Deployment")["spec"]
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    budget = the(BASE, "PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] < deployment["replicas"]
    chosen = budget["selector"]["matchLabels"]
    assert chosen.items() <= deployment["template"]["metadata"]["labels"].items()


def test_tasks_have_one_owner_and_a_volume_that_holds_them() -> None:
    folder = "overlays/tasks"
    deployment, settings = the(folder, "Deployment")["spec"], server(folder)
    assert settings.tasks
    assert not server(BASE).tasks
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    claim = mounted(folder)[settings.state_dir]["persistentVolumeClaim"]["claimName"]
    volume = the(folder, "PersistentVolumeClaim")
    assert volume["metadata"]["name"] == claim
    size = volume["spec"]["resources"]["requests"]["storage"]
    assert size.endswith("Gi")
    assert int(size[:-2]) * 1024 >= 1.25 * settings.tasks_max_mib


def test_tasks_of_several_pods_stand_in_one_redis() -> None:
    settings = server(SHARED)
    assert settings.tasks
    assert settings.tasks_store.startswith("redis://")
    (password,) = [each for each in pool(SHARED)["env"] if "valueFrom" in each]
    assert password["name"] == PASSWORD_VARIABLE
    assert "emptyDir" in mounted(SHARED)[settings.state_dir]


def test_pods_are_added_by_the_age_of_the_oldest_task() -> None:
    scaler, deployment = the(SHARED, "HorizontalPodAutoscaler")["spec"], the(SHARED, "Deployment")
    assert scaler["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert scaler["scaleTargetRef"]["apiVersion"] == deployment["apiVersion"]
    assert "replicas" not in deployment["spec"], "each apply would set it"
    assert the(SHARED, "PodDisruptionBudget")["spec"]["maxUnavailable"] < scaler["minReplicas"]
    (metric,) = [each["external"] for each in scaler["metrics"]]
    name = metric["metric"]["name"]
    assert name in {each.name for each in METRICS}
    assert metric["target"]["type"] == "Value", "all pods tell the same age"
    assert int(metric["target"]["value"]) < server(SHARED).task_max_age_s
    text = (ROOT / "kubernetes" / SHARED / "prometheus-adapter.yaml").read_text()
    (rule,) = yaml.safe_load(text)["rules"]["external"]
    assert rule["name"]["as"] == name
    assert rule["seriesQuery"].startswith(f"{name}{{")
    assert rule["metricsQuery"].startswith("max(")
    annotations = deployment["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/scrape"] == "true"


def test_keda_follows_the_same_age_by_the_same_numbers() -> None:
    """It owns the deployment alone: two autoscalers of one would take turns in undoing."""
    kinds = {each["kind"] for each in built(SHARED)} - {"HorizontalPodAutoscaler"}
    assert {each["kind"] for each in built(KEDA)} == {*kinds, "ScaledObject"}
    keda, scaler = the(KEDA, "ScaledObject")["spec"], the(SHARED, "HorizontalPodAutoscaler")["spec"]
    assert keda["scaleTargetRef"] == scaler["scaleTargetRef"]
    assert keda["minReplicaCount"] == scaler["minReplicas"]
    assert keda["maxReplicaCount"] == scaler["maxReplicas"]
    assert keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == scaler["behavior"]
    (metric,) = [each["external"] for each in scaler["metrics"]]
    (trigger,) = keda["triggers"]
    assert (trigger["type"], trigger["metricType"]) == ("prometheus", metric["target"]["type"])
    settings = trigger["metadata"]
    assert all(type(value) is str for value in settings.values()), "KEDA refuses others"
    assert settings["threshold"] == metric["target"]["value"]
    query = re.fullmatch(r"max\((\w+)\{namespace=\"\w+\"\}\)", settings["query"])
    assert query is not None
    assert query[1] == metric["metric"]["name"]
    assert query[1] in {each.name for each in METRICS}


def test_the_number_of_pods_changes_no_faster_than_models_load() -> None:
    scaler, settings = the(SHARED, "HorizontalPodAutoscaler")["spec"], server(SHARED)
    down = scaler["behavior"]["scaleDown"]
    assert down["stabilizationWindowSeconds"] >= settings.load_timeout_s
    assert all(each["periodSeconds"] > settings.drain_s for each in down["policies"])
    up = scaler["behavior"]["scaleUp"]["policies"]
    assert [(each["type"], each["value"]) for each in up] == [("Pods", 1)]


def test_a_client_beside_the_pool_sees_its_socket_and_is_seen() -> None:
    folder = "overlays/local-clients"
    assert pod(folder)["shareProcessNamespace"] is True
    (client,) = [each for each in pod(folder)["containers"] if each["name"] == "client"]
    mounts = {each["name"]: each["mountPath"] for each in client["volumeMounts"]}
    assert mounts == {"run": str(Path(server(folder).socket).parent)}
    assert "securityContext" not in client or "runAsUser" not in client["securityContext"]


def test_a_gpu_pod_asks_for_one() -> None:
    assert pool("overlays/gpu")["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_the_container_file_agrees_with_the_manifests() -> None:
    text = (ROOT / "Containerfile").read_text()
    user = re.search(r"^USER (\d+):(\d+)$", text, re.M)
    assert user is not None
    context = pod(BASE)["securityContext"]
    assert (int(user[1]), int(user[2])) == (context["runAsUser"], context["runAsGroup"])
    assert f"--uid {user[1]} " in text
    assert f"EXPOSE {server(BASE).port}" in text
    command = re.search(r"^CMD \[(.*)\]$", text, re.M)
    assert command is not None
    assert command[1].replace('"', "").split(", ") == pool(BASE)["args"]
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    copied = {
        word for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.M)
        for word in line.split()[:-1]
    }  # fmt: skip
    assert copied == sent
    assert all((ROOT / name).exists() for name in copied)
