"""Spark's settings for Kubernetes with a worker in its pods. Design: docs/design/deployment.md."""

from __future__ import annotations

import math
from pathlib import Path

from tuplewire.errors import ConfigError

CLOSE_SECONDS = 5
"""The time for a worker to close after its drain, with one second in reserve."""

BLOCK_MANAGER_PORT, DRIVER_PORT = 7079, 7078


def settings(
    template: str | Path,
    *,
    driver_template: str | Path = "",
    drain_seconds: float = 25.0,
    executor_exit_seconds: float = 15.0,
) -> dict[str, str]:
    """Return Spark's settings by name, for a session's builder or for spark-submit.

    The grace period of an executor's pod is the sum of all times, because Spark overrides the template's.
    Batches of rows for Python have at most 4 MiB.

    Args:
        template: The executors' pod template from the chart's ConfigMap tuplewire-executor-template, as a
            path, or as a URL that Spark can read.
        driver_template: The driver's, from tuplewire-driver-template, if Spark creates its pod. It adds the
            worker that topologies need, certificates, tokens, and the settings of `restricted` namespaces.
        drain_seconds: The drain time of the templates' workers.
        executor_exit_seconds: The time for an executor to exit before its worker starts to drain.

    Raises:
        ConfigError: The template is empty, or a time is not more than 0.
    """
    if not str(template).strip():
        raise ConfigError("template is empty: name a file with the content of tuplewire-executor-template")
    for name, value in (("drain_seconds", drain_seconds), ("executor_exit_seconds", executor_exit_seconds)):
        if not 0 < value < math.inf:
            raise ConfigError(f"{name} must be a number of more than 0, not {value!r}")
    grace_seconds = math.ceil(executor_exit_seconds + drain_seconds + CLOSE_SECONDS)
    found = {
        "spark.kubernetes.executor.podTemplateFile": str(template),
        "spark.kubernetes.executor.podTemplateContainerName": "spark-kubernetes-executor",
        "spark.kubernetes.executor.terminationGracePeriodSeconds": f"{grace_seconds}s",
        # For spark.decommission.enabled, which would otherwise use up the grace period before the drain.
        "spark.executor.decommission.forceKillTimeout": f"{math.ceil(executor_exit_seconds)}s",
        # The NetworkPolicy opens this port for shuffles. By default, Spark chooses a random one.
        "spark.blockManager.port": str(BLOCK_MANAGER_PORT),
        # Otherwise rows of 10 KB arrive in batches of 100 MB: see docs/how-to/spark.md, on large rows.
        "spark.sql.execution.arrow.maxBytesPerBatch": "4m",
    }
    if str(driver_template).strip():
        found["spark.kubernetes.driver.podTemplateFile"] = str(driver_template)
        found["spark.kubernetes.driver.podTemplateContainerName"] = "spark-kubernetes-driver"
        found["spark.driver.port"] = str(DRIVER_PORT)  # the policy opens it too
    return found
