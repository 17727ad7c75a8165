"""A Spark program on Kubernetes without a cluster: Spark's own pod, with its containers as processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
import yaml
from helpers import eventually
from helpers.kubernetes_api import kubernetes_api
from helpers.manifests import Manifest, cluster, container, executor, the, variables
from helpers.pod_here import SPARK, PodHere, pod_here
from helpers.topology import collect

from tuplewire import Client
from tuplewire.spark import kubernetes
from tuplewire_demos.java import find_java

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

DRIVER = Path(__file__).with_name("spark_job_driver.py")
MESSAGES = 100
_SECONDS = 120.0


def _executor_command(pod: Manifest) -> list[str | Path]:
    """Return the command of the entry point in Spark's image. Source: Spark's `entrypoint.sh`, `executor`."""
    given = variables(container(pod, SPARK))
    options = [value for name, value in sorted(given.items()) if name.startswith("SPARK_JAVA_OPT_")]
    return [
        find_java().home / "bin" / "java",
        *options,
        "-Xmx512m",
        "-cp",
        f"{Path(pyspark.__file__).parent}/jars/*",
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", given["SPARK_DRIVER_URL"]),
        *("--executor-id", given["SPARK_EXECUTOR_ID"]),
        *("--cores", given["SPARK_EXECUTOR_CORES"]),
        *("--app-id", given["SPARK_APPLICATION_ID"]),
        *("--hostname", "127.0.0.1"),
        *("--resourceProfileId", given["SPARK_RESOURCE_PROFILE_ID"]),
        *("--podName", pod["metadata"]["name"]),
    ]


def test_executors_send_through_the_worker_beside_them(tmp_path: Path) -> None:
    """The driver finds the worker at the executor's address, and the executor by the template alone."""
    template = tmp_path / "executor-template.yaml"
    template.write_text(yaml.safe_dump(executor("dev")), encoding="utf-8")
    config = the(cluster("dev"), "ConfigMap", "tuplewire-config")["data"]["worker.toml"]
    port_file = tmp_path / "port"
    with kubernetes_api() as api:
        settings = {
            **kubernetes.settings(template),
            "spark.master": api.master,
            "spark.kubernetes.container.image": "apache/spark:4.3.0",
            "spark.kubernetes.executor.enableApiWatcher": "false",
            "spark.executor.instances": "1",
            "spark.executor.memory": "512m",
        }
        driver = subprocess.Popen(
            [sys.executable, DRIVER, json.dumps(settings), port_file],
            stdout=subprocess.PIPE,
            env={**os.environ, "KUBECONFIG": os.devnull, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        try:
            eventually(lambda: api.of_kind("Pod") or driver.poll() is not None, _SECONDS, "a pod")
            (pod,) = api.of_kind("Pod")
            with pod_here(pod, pod["metadata"]["name"], tmp_path / "pod", config, {}) as here:
                _write_whole(port_file, here.address.rpartition(":")[2])
                with here.running(*_executor_command(pod)):
                    said, _ = driver.communicate(timeout=_SECONDS)
                assert driver.returncode == 0, here.log
                _check(here, json.loads(said))
                assert here.end() == 0, here.log
        finally:
            driver.kill()
            driver.wait(60)


def _check(here: PodHere, seen: list[tuple[str, int]]) -> None:
    """Check that all messages were sent through the pod's socket, acknowledged, and delivered."""
    one = container(here.pod, SPARK)
    socket = here.local(one, variables(one)["TUPLEWIRE_ADDRESS"])
    assert {address for address, _ in seen} == {socket}
    assert sum(acknowledged for _, acknowledged in seen) == MESSAGES
    with Client(socket) as client:
        received = collect(client.recv([1], timeout=30), MESSAGES)
    assert sorted(int(payload) for _, payload in received) == list(range(MESSAGES))


def _write_whole(path: Path, text: str) -> None:
    """Write a file that appears only when it is complete."""
    aside = path.with_suffix(".new")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)
