"""What Spark on Kubernetes has to be told, so that each of its executors has a worker beside it."""

from __future__ import annotations

import math
from pathlib import Path

from tuplewire.errors import ConfigError

CLOSE_SECONDS = 5
"""What a worker needs to close once it is drained, with a second to spare."""

BLOCK_MANAGER_PORT = 7079
_EXECUTOR_CONTAINER = "spark-kubernetes-executor"
_WORKER_NAME = "worker.tuplewire"
_TLS_DIRECTORY = "/etc/tuplewire/tls"
_TOKEN_DIRECTORY = "/etc/tuplewire/token"  # noqa: S105 - where it is, not what it is


def settings(
    template: str | Path,
    *,
    drain_seconds: float = 25.0,
    executor_seconds: float = 15.0,
    secure: bool = False,
) -> dict[str, str]:
    """Return Spark's settings, by their names, to give to a session's builder or to spark-submit.

    template: the executors' pod template, rendered from an overlay of deploy/kustomize; a path, or a URL that
    Spark can read. drain_seconds: that of the template's workers. executor_seconds: what an executor gets to
    end, before its worker begins to drain. secure: whether the overlay has certificates and tokens; the
    driver's pod, where Spark makes it, then gets the Secrets tuplewire-client-tls and
    tuplewire-driver-token, which may assign, drain and publish as the executors' token may not.

    The grace period of an executor's pod is the sum of it all: Spark overrides the template's. Batches of
    rows for Python have 4 MiB at most. Raises ConfigError when there is no template, or a time is not more
    than 0.
    """
    if not str(template).strip():
        raise ConfigError("template is empty: render one with kubectl kustomize, and name that file")
    for name, value in (("drain_seconds", drain_seconds), ("executor_seconds", executor_seconds)):
        if not 0 < value < math.inf:
            raise ConfigError(f"{name} must be a number of more than 0, not {value!r}")
    grace_seconds = math.ceil(executor_seconds + drain_seconds + CLOSE_SECONDS)
    found = {
        "spark.kubernetes.executor.podTemplateFile": str(template),
        "spark.kubernetes.executor.podTemplateContainerName": _EXECUTOR_CONTAINER,
        "spark.kubernetes.executor.terminationGracePeriodSeconds": f"{grace_seconds}s",
        # Only with spark.decommission.enabled, which would else leave the worker nothing of the grace period.
        "spark.executor.decommission.forceKillTimeout": f"{math.ceil(executor_seconds)}s",
        # The one port that the NetworkPolicy opens for shuffles. By default Spark chooses any.
        "spark.blockManager.port": str(BLOCK_MANAGER_PORT),
        # Else rows of 10 KB come as batches of 100 MB: see docs/how-to/spark.md, on large rows.
        "spark.sql.execution.arrow.maxBytesPerBatch": "4m",
    }
    return found | (_driver_secrets() if secure else {})


def _driver_secrets() -> dict[str, str]:
    environment = {
        "TUPLEWIRE_TLS_CERTIFICATE": f"{_TLS_DIRECTORY}/tls.crt",
        "TUPLEWIRE_TLS_KEY": f"{_TLS_DIRECTORY}/tls.key",
        "TUPLEWIRE_TLS_CA": f"{_TLS_DIRECTORY}/ca.crt",
        "TUPLEWIRE_TLS_WORKER_NAMES": _WORKER_NAME,
        "TUPLEWIRE_TOKEN_FILE": f"{_TOKEN_DIRECTORY}/token",
    }
    return {
        "spark.kubernetes.driver.secrets.tuplewire-client-tls": _TLS_DIRECTORY,
        "spark.kubernetes.driver.secrets.tuplewire-driver-token": _TOKEN_DIRECTORY,
        **{f"spark.kubernetes.driverEnv.{name}": value for name, value in environment.items()},
    }
