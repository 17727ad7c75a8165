"""The Spark session that all tests here share, and workers for each pipeline."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers import doubling, runtimes
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from warm_spark import WarmSpark

from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire_demos.local_session import local_session

CORES = 6
HERE = Path(__file__).parent


@dataclass
class Running:
    """Workers with assigned tasks."""

    local: WorkerProcesses
    endpoints: list[Endpoint]


Launch = Callable[[str, Mapping[int, Sequence[int]]], AbstractContextManager[Running]]


@contextmanager
def _launched(topology: str, placed: Mapping[int, Sequence[int]]) -> Iterator[Running]:
    # After a failed run, no consumer takes the remaining messages.
    with WorkerProcesses(count=len(placed), topology=topology, flags=["--drain-seconds=1"]) as local:
        local.assign(placed)
        yield Running(local, local.endpoints)


@pytest.fixture(scope="module", autouse=True)
def _by_value(request: pytest.FixtureRequest, warm_spark: WarmSpark) -> None:  # noqa: ARG001
    """Send modules of the tests to Spark's Python workers, which do not find them."""
    for module in (request.module, doubling, runtimes):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


_running = ExitStack()
"""Ends the session that all tests share."""


@pytest.fixture(scope="session")
def spark(warm_spark: WarmSpark) -> Iterator[SparkSession]:
    """Start the session that all tests share, with slots for four bolts and two spouts."""
    with _running:
        yield _running.enter_context(_started(warm_spark))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the session after the last test: its JVM may take many seconds to write its archive of classes."""
    if item.config.getoption("one_spark") and (nextitem is None or HERE not in nextitem.path.parents):
        _running.close()


@contextmanager
def _started(warm_spark: WarmSpark) -> Iterator[SparkSession]:
    conf = {
        "spark.connect.grpc.binding.port": "0",  # any free port, for tests that serve Spark Connect
        # A barrier stage with too few slots fails after a second, not after ten minutes.
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "1",
        "spark.python.daemon.module": "warm_daemon",
        # Most plans run once here: compiling them takes longer than running them.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    with ExitStack() as stack:
        stack.callback(warm_spark.adopt)
        with _jvm_without_fork(warm_spark.archiving):
            session = stack.enter_context(local_session("tuplewire-tests", cores=CORES, conf=conf))
        yield session


@contextmanager
def _jvm_without_fork(environment: Mapping[str, str]) -> Iterator[None]:
    """Start PySpark's JVM without a hook. Python would fork to run it, and a fork may crash (see README)."""

    def spawn(*arguments: Any, preexec_fn: Any, **keywords: Any) -> subprocess.Popen[bytes]:  # noqa: ARG001
        return subprocess.Popen(*arguments, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyspark.java_gateway.Popen", spawn)
        patch.setenv("PYTHONPATH", str(HERE / "daemon"), prepend=os.pathsep)
        for name, value in environment.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def launch() -> Launch:
    """Return a function that runs a worker for each entry of an assignment, as a context manager."""
    return _launched


@pytest.fixture(scope="module")
def flights_workers(spark: SparkSession) -> Iterator[list[str]]:  # noqa: ARG001 - Spark forks: start it first
    """Run two workers for the flights pipeline; return their addresses."""
    with WorkerProcesses(2, "flights", flags=["--drain-seconds=1"]) as local:
        yield [each.unix_address for each in local.endpoints]
