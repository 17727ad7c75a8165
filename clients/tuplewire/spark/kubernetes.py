"""Spark's settings on Kubernetes, with a worker in the pods of executors and drivers.

Design: docs/design/deployment.md.
"""

from __future__ import annotations

import math
from pathlib import Path

from tuplewire.errors import ConfigError

CLOSE_SECONDS = 5
"""A worker's time to close once it is drained, with a second to spare."""

BLOCK_MANAGER_PORT, DRIVER_PORT = 7079, 7078


def settings(
    template: str | Path,
    *,
    driver_template: str | Path = "",
    drain_seconds: float = 25.0,
    executor_seconds: float = 15.0,
) -> dict[str, str]:
    """Return Spark's settings, by their names, to give to a session's builder or to spark-submit.

    template: the executors' pod template, from the chart's ConfigMap tuplewire-executor-template; a path, or
    a URL that Spark can read. driver_template: the same for the driver, from tuplewire-driver-template, where
    Spark makes its pod: it brings the worker that topologies need, certificates and tokens, and what
    namespaces with the standard `restricted` ask for. drain_seconds: that of the templates' workers.
    executor_seconds: what an executor gets to end, before its worker begins to drain.

    The grace period of an executor's pod is the sum of it all: Spark overrides the template's. Batches of
    rows for Python have 4 MiB at most. Raises ConfigError when there is no template, or a time is not more
    than 0.
    """
    if not str(template).strip():
        raise ConfigError("template is empty: name a file with what tuplewire-executor-template holds")
    for name, value in (("drain_seconds", drain_seconds), ("executor_seconds", executor_seconds)):
        if not 0 < value < math.inf:
            raise ConfigError(f"{name} must be a number of more than 0, not {value!r}")
    grace_seconds = math.ceil(executor_seconds + drain_seconds + CLOSE_SECONDS)
    found = {
        "spark.kubernetes.executor.podTemplateFile": str(template),
        "spark.kubernetes.executor.podTemplateContainerName": "spark-kubernetes-executor",
        "spark.kubernetes.executor.terminationGracePeriodSeconds": f"{grace_seconds}s",
        # Only with spark.decommission.enabled, which would else leave the worker nothing of the grace period.
        "spark.executor.decommission.forceKillTimeout": f"{math.ceil(executor_seconds)}s",
        # The NetworkPolicy opens this port for shuffles. By default Spark chooses any.
        "spark.blockManager.port": str(BLOCK_MANAGER_PORT),
        # Else rows of 10 KB come as batches of 100 MB: see docs/how-to/spark.md, on large rows.
        "spark.sql.execution.arrow.maxBytesPerBatch": "4m",
    }
    if str(driver_template).strip():
        found["spark.kubernetes.driver.podTemplateFile"] = str(driver_template)
        found["spark.kubernetes.driver.podTemplateContainerName"] = "spark-kubernetes-driver"
        found["spark.driver.port"] = str(DRIVER_PORT)  # which the policy opens, too
    return found
