"""Spark drivers in separate processes: a test file is also the program, which its `__main__` runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from tuplewire.processes.worker_processes import WorkerProcesses
from tuplewire.spark.executors import Executors, SparkExecutor
from tuplewire_demos.local_session import FAST_START, local_session

_TESTS = Path(__file__).parents[1]
TOPOLOGY = "spark"
DRIVER_SECONDS = 900
"""Ends a driver that hangs. A busy machine takes several times as long as a quiet one."""
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Most plans run once in a test: compiling them takes longer than running them."""


def as_program(file: str, *arguments: object) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs a test file as a program, and its environment variables."""
    path = os.pathsep.join(f"{_TESTS}{folder}" for folder in ("", "/tools", "/tools/bench"))
    return [sys.executable, file, *map(str, arguments)], {**os.environ, "PYTHONPATH": path}


def run_driver(file: str, *arguments: object, folder: Path | None = None) -> dict[str, Any]:
    """Run a test file as a driver, in a folder; return its reported results. Fails if the driver does."""
    command, environment = as_program(file, *arguments)
    done = subprocess.run(
        command,
        check=True,
        cwd=folder,
        env=environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=DRIVER_SECONDS,
    )
    return dict(json.loads(line) for line in done.stdout.splitlines())


def report(name: str, value: object) -> None:
    """Print a result of a driver, for run_driver()."""
    print(json.dumps([name, value]), flush=True)


def spark_home(work: str | Path) -> None:
    """Let this process start executors in JVMs, with their files in a folder."""
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    os.environ["SPARK_SCALA_VERSION"] = "2.13"
    os.environ["SPARK_WORKER_DIR"] = str(work)


@contextmanager
def local_cluster(
    name: str, work: str | Path, conf: Mapping[str, str], cores: int = 1
) -> Iterator[SparkSession]:
    """Start a session with two executors in separate JVMs. cores: of each executor."""
    spark_home(work)
    common = {
        "spark.master": f"local-cluster[2,{cores},900]",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": f"{FAST_START} {os.environ.get('SPARK_SUBMIT_OPTS', '')}",
        **INTERPRETED,
    }
    with local_session(name, conf={**common, **conf}) as spark:
        yield spark


class Kubelet:
    """Starts a worker next to each executor and stops it after the executor, as a kubelet does a sidecar."""

    def __init__(self, spark: SparkSession, home: Path, drain_seconds: float) -> None:
        self._home = home
        self._drain_seconds = drain_seconds
        self._executors = Executors(spark)
        self._workers: dict[str, WorkerProcesses] = {}
        self.exit_codes: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._main)
        self._thread.start()

    def _main(self) -> None:
        while not self._stop.wait(0.2):
            running = {each.id for each in self._executors()}
            for number in running - self._workers.keys():
                flags = [f"--worker-id=executor-{number}"]
                directory = self._home / f"executor-{number}"
                directory.mkdir()
                workers = WorkerProcesses(
                    1, TOPOLOGY, directory=directory, flags=flags, drain_seconds=self._drain_seconds
                )
                workers.start()
                self._workers[number] = workers
            for number in self._workers.keys() - running:
                self.exit_codes += self._workers.pop(number).stop()

    def worker_of(self, executor: SparkExecutor) -> str | None:
        """Return the address of the worker next to an executor, or None if it has not started."""
        workers = self._workers.get(executor.id)
        return workers.endpoints[0].address if workers is not None else None

    def end(self) -> None:
        """Stop all workers."""
        self._stop.set()
        self._thread.join()
        for workers in self._workers.values():
            workers.stop()


def beside_its_worker(python: str | Path, program: Path, socket: str) -> str:
    """Write a script that runs an interpreter with the address of a worker's socket, as in a sidecar's pod.

    The name of an executor's folder is its number: the script replaces EXECUTOR by it in `socket`.
    """
    address = f'"unix://{socket}"'.replace("EXECUTOR", '$(basename "$PWD")')
    program.write_text(f'#!/bin/sh\nTUPLEWIRE_ADDRESS={address} exec {python} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return str(program)
