"""The pod that Spark builds from our template: Spark's pod builder requests it from a stub of the API."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from helpers import eventually
from helpers.kubernetes_api import KubernetesApi, kubernetes_api
from helpers.manifests import PROFILES, Manifest, cluster, container, executor, selects, the, variables
from helpers.pod_checks import check_pod, check_restricted, check_sidecar
from helpers.schemas import VERSIONS, validate

from tuplewire.spark import kubernetes

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

DRIVER = Path(__file__).with_name("spark_pod_driver.py")
POD_SECONDS = 200.0
SPARK = "spark-kubernetes-executor"


def _ask_for_executor(api: KubernetesApi, template: Path) -> Manifest:
    """Run a driver until it has requested an executor; return the pod."""
    settings = {
        **kubernetes.settings(template),
        "spark.master": api.master,
        "spark.kubernetes.container.image": "apache/spark:4.3.0",
        "spark.kubernetes.executor.enableApiWatcher": "false",
        "spark.executor.instances": "1",
        "spark.scheduler.minRegisteredResourcesRatio": "0",
        "spark.decommission.enabled": "true",
    }
    asked = len(api.of_kind("Pod"))
    driver = subprocess.Popen(
        [sys.executable, DRIVER, json.dumps(settings)],
        stdin=subprocess.PIPE,
        env={**os.environ, "KUBECONFIG": os.devnull},
    )
    try:
        eventually(lambda: len(api.of_kind("Pod")) > asked or driver.poll() is not None, POD_SECONDS, "a pod")
        assert driver.poll() is None, "the driver has ended; its error is above"
    finally:
        driver.communicate(timeout=60)
    return api.of_kind("Pod")[asked]


@pytest.fixture(scope="module", params=PROFILES)
def profile(request: pytest.FixtureRequest) -> str:
    """Return the name of each profile in turn."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def pod(profile: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manifest]:
    """Return the executor's pod that Spark requests, with the template of the profile."""
    template = tmp_path_factory.mktemp(profile) / "executor-template.yaml"
    template.write_text(yaml.safe_dump(executor(profile)), encoding="utf-8")
    with kubernetes_api() as api:
        yield _ask_for_executor(api, template)


def test_it_keeps_the_schemas(pod: Manifest) -> None:
    """The merged pod is valid, without unknown fields, in old and new versions of Kubernetes."""
    for version in VERSIONS:
        validate(pod, version)


def test_it_is_whole(pod: Manifest) -> None:
    """Spark's additions leave mounts, names, resources and probes valid."""
    check_pod(pod)


def test_the_worker_comes_first(profile: str, pod: Manifest) -> None:
    """The sidecar is the same as in the template, and starts before all other containers."""
    check_sidecar(pod)
    assert container(pod) == container(executor(profile))


def test_the_executor_is_sparks(profile: str, pod: Manifest) -> None:
    """Its image, command and resources come from Spark; address, mounts and rights from the template."""
    merged, ours = container(pod, SPARK), container(executor(profile), SPARK)
    assert merged["image"] == "apache/spark:4.3.0"
    assert merged["args"] == ["executor"]
    assert merged["resources"]["limits"]["memory"]
    assert variables(merged).items() >= variables(ours).items()
    assert "SPARK_EXECUTOR_POD_IP" in variables(merged)
    assert all(mount in merged["volumeMounts"] for mount in ours["volumeMounts"])
    assert merged["securityContext"] == ours["securityContext"]


def test_nobody_has_more_rights_than_needed(pod: Manifest) -> None:
    """Both containers satisfy the `restricted` standard, with separate users."""
    check_restricted(pod, "tuplewire")
    check_restricted(pod, SPARK)


def test_the_grace_period_is_ours(pod: Manifest) -> None:
    """The grace period follows the settings, not Spark's default of 30 seconds for every template."""
    assert pod["spec"]["terminationGracePeriodSeconds"] == 45


def test_only_the_executor_is_decommissioned(pod: Manifest) -> None:
    """Spark's hook is on its own container; the worker drains at SIGTERM."""
    assert "preStop" in container(pod, SPARK)["lifecycle"]
    assert "lifecycle" not in container(pod)


def test_the_network_policy_takes_it(profile: str, pod: Manifest) -> None:
    """The policy selects the pod and admits similar pods, and Spark's block manager port is the usual one."""
    spec = the(cluster(profile), "NetworkPolicy", "tuplewire")["spec"]
    labels = pod["metadata"]["labels"]
    assert selects(spec["podSelector"], labels)
    ports = {port["name"]: port["containerPort"] for port in container(pod, SPARK)["ports"]}
    (blocks,) = [rule for rule in spec["ingress"] if rule["ports"][0]["port"] == ports["blockmanager"]]
    assert any(selects(peer["podSelector"], labels) for peer in blocks["from"])
