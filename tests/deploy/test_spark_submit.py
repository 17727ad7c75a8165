"""The objects that the real spark-submit requests in cluster mode, accepted by a stub of the API."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
import yaml
from helpers.kubernetes_api import KubernetesApi, kubernetes_api
from helpers.manifests import Manifest, cluster, container, executor, selects, the, variables
from helpers.pod_checks import check_pod, check_restricted, check_sidecar, mounted
from helpers.schemas import VERSIONS, validate

from tuplewire.identity.credentials import Credentials
from tuplewire.spark import kubernetes
from tuplewire_demos.java import find_java, wrapped_home

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PROFILE = "mtls"
DRIVER = "spark-kubernetes-driver"
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"


@pytest.fixture(scope="module")
def submitted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesApi]:
    """Submit a program with our settings, and return the API with the requested objects."""
    folder = tmp_path_factory.mktemp("submit")
    template, drivers = folder / "executor-template.yaml", folder / "driver-template.yaml"
    for path, role in ((template, "executor"), (drivers, "driver")):
        path.write_text(yaml.safe_dump(executor(PROFILE, role)), encoding="utf-8")
    with kubernetes_api() as api:
        settings = {
            **kubernetes.settings(template, driver_template=drivers),
            "spark.kubernetes.container.image": "apache/spark:4.3.0",
            "spark.kubernetes.submission.waitAppCompletion": "false",
        }
        command: list[str | Path] = [
            SUBMIT,
            "--master",
            api.master,
            "--deploy-mode",
            "cluster",
            "--name",
            "tuplewire",
        ]
        command += [f"--conf={name}={value}" for name, value in settings.items()]
        environment = {
            **os.environ,
            "JAVA_HOME": str(wrapped_home(find_java(), folder / "java")),
            "KUBECONFIG": os.devnull,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        done = subprocess.run(
            [*command, "local:///opt/program.py"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        yield api


@pytest.fixture
def driver(submitted: KubernetesApi) -> Manifest:
    """Return the driver's pod."""
    (pod,) = submitted.of_kind("Pod")
    return pod


def test_the_drivers_pod_is_one(driver: Manifest) -> None:
    """It is valid and complete, satisfies the `restricted` standard, and its worker starts first."""
    check_pod(driver)
    check_sidecar(driver)
    for name in ("tuplewire", DRIVER):
        check_restricted(driver, name)
    assert variables(container(driver, DRIVER))["TUPLEWIRE_ADDRESS"] == "unix:///run/tuplewire/worker.sock"
    ports = {each["containerPort"] for each in container(driver, DRIVER)["ports"]}
    assert ports >= {kubernetes.DRIVER_PORT, kubernetes.BLOCK_MANAGER_PORT}
    for version in VERSIONS:
        validate(driver, version)


def test_the_driver_shows_who_it_is(driver: Manifest) -> None:
    """The driver's credentials are files of mounted Secrets: a program's, not a worker's."""
    one = container(driver, DRIVER)
    credentials = Credentials.from_environment(variables(one))
    assert credentials.tls_worker_names == ("worker.tuplewire",)
    volumes = [each for each in driver["spec"]["volumes"] if "secret" in each]
    secrets = {each["name"]: each["secret"]["secretName"] for each in volumes}
    found = {}
    for path in (*map(str, credentials.files), str(credentials.token_file)):
        mount = mounted(one, path)
        assert mount, path
        found[path] = secrets[mount["name"]]
    assert set(found.values()) == {"tuplewire-client-tls", "tuplewire-driver-token"}
    assert found[str(credentials.token_file)] == "tuplewire-driver-token"


def test_the_template_travels(submitted: KubernetesApi) -> None:
    """The driver gets the unchanged template, and creates its executors from it."""
    (travels,) = [each for each in submitted.of_kind("ConfigMap") if "podspec-configmap-key" in each["data"]]
    assert yaml.safe_load(travels["data"]["podspec-configmap-key"]) == executor(PROFILE)


def test_sparks_own_policy_leaves_ours_room(submitted: KubernetesApi) -> None:
    """Spark admits only a program's own pods to executors; our policy also admits workers and Prometheus."""
    (sparks,) = submitted.of_kind("NetworkPolicy")
    (pod,) = submitted.of_kind("Pod")
    program = pod["metadata"]["labels"]["spark-app-selector"]
    labels = {
        **executor(PROFILE)["metadata"]["labels"],
        "spark-role": "executor",
        "spark-app-selector": program,
    }
    # Policies are additive, so neither one restricts the other.
    assert selects(sparks["spec"]["podSelector"], labels)
    ours = the(cluster(PROFILE), "NetworkPolicy", "tuplewire")["spec"]
    assert selects(ours["podSelector"], labels)
    (peer,) = sparks["spec"]["ingress"][0]["from"]
    assert not selects(peer["podSelector"], {"app.kubernetes.io/name": "prometheus"})
    assert any(
        selects(each["podSelector"], pod["metadata"]["labels"])
        for rule in ours["ingress"]
        for each in rule["from"]
        if rule["ports"][0]["port"] == 6700
    )
