"""Two executors in separate JVMs, a worker next to each, and the ways to provide Tuplewire to them."""

from __future__ import annotations

import json
import os
import shutil
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
import venv_pack
from helpers.drivers import INTERPRETED, TOPOLOGY, beside_its_worker, local_cluster, report, run_driver
from helpers.packaging import build_wheel, make_interpreter, make_movable_interpreter, site_packages
from helpers.tools import ROOT, ran
from helpers.topology import status
from pyspark.sql import SparkSession

from tuplewire.spark import register
from tuplewire.spark.package import write_package
from tuplewire_demos.local_session import create_java_home, find_java

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

APPLICATION = Path(__file__).with_name("submitted.py")
ROWS = 1000
TASKS = {0: [1, 7, 9, 11], 1: [2, 8, 10, 12]}


def packed(home: Path, wheel: Path) -> Path:
    """Pack an environment as its page describes."""
    needed = ("grpc", "google", "typing_extensions", "pyarrow")
    install(make_movable_interpreter(home / "environment", needed), wheel)
    archive = home / "environment.tar.gz"
    venv_pack.pack(str(home / "environment"), str(archive), compress_level=0)
    return archive


def install(python: Path, wheel: Path) -> None:
    """Install only the wheel, as an image would; tests/contract/test_wheel.py tests the use of pip."""
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site_packages(python))


@pytest.fixture(scope="module")
def outcome(
    spark: SparkSession, launch: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """Run the driver; yield the result of each case, and the number of messages that each worker received."""
    home = tmp_path_factory.mktemp("cluster")
    quick = spark.sparkContext.getConf().get("spark.executor.extraJavaOptions", "")
    wheel = build_wheel(ROOT, home)
    artifact, py_file = home / "by-artifact.zip", home / "by-py-file.zip"
    for path in (artifact, py_file):
        write_package(path)
    bare = make_interpreter(home / "bare")
    installed = make_interpreter(home / "wheel")
    install(installed, wheel)
    archive = packed(home, wheel)
    with launch("spark", TASKS) as running:
        sockets = f"{running.local.directory}/worker-EXECUTOR.sock"
        settings = {
            "address": running.endpoints[0].address,
            "archive": str(archive),
            "artifact": str(artifact),
            "bare": str(bare),
            "wheel": beside_its_worker(installed, installed.with_name("python-beside-its-worker"), sockets),
            "work": str(home / "work"),
        }
        found = run_driver(__file__, json.dumps(settings), folder=home)
        found["py_file"] = submit(bare, py_file, running.endpoints[0].address, home, quick)
        found["sent"] = [
            sum(each.messages for each in status(worker).received if each.source == "client")
            for worker in running.endpoints
        ]
        yield found
    shutil.rmtree(home, ignore_errors=True)


def submit(python: Path, py_file: Path, address: str, cwd: Path, java_options: str) -> tuple[int, list[str]]:
    """Submit an application to a separate Spark; return its row count and the locations of Tuplewire."""
    home = Path(pyspark.__file__).parent
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": java_options,
        **INTERPRETED,
        "spark.sql.shuffle.partitions": "2",
    }
    command = [str(home / "bin" / "spark-submit"), "--master=local[2]", f"--py-files={py_file}"]
    flags = [flag for key, value in conf.items() for flag in ("--conf", f"{key}={value}")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "JAVA_HOME": str(create_java_home(find_java(), cwd / "java")),
        "PYSPARK_PYTHON": str(python),
        "SPARK_LAUNCHER_OPTS": java_options,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    application = [*command, *flags, str(APPLICATION), address]
    done = ran(*application, cwd=cwd, env=environment, start_new_session=True)
    assert done.returncode == 0, done.stderr[-4000:]
    rows, *places = json.loads(done.stdout.splitlines()[-1])
    return rows, places


def test_sink_beside_each_executor(outcome: dict[str, Any]) -> None:
    """With a wheel in the executors' interpreter, each executor writes through the worker next to it."""
    assert outcome["sink"] == ROWS
    assert min(outcome["sent"]) >= ROWS // 2


@pytest.mark.parametrize(
    ("case", "origin"),
    [("archive", "environment/lib"), ("artifact", "by-artifact.zip"), ("py_file", "by-py-file.zip")],
)
def test_shipped(outcome: dict[str, Any], case: str, origin: str) -> None:
    """Executors load Tuplewire from a packed environment, or from a zip by addArtifact or --py-files."""
    rows, places = outcome[case]
    assert rows == ROWS
    assert all(origin in place for place in places), places


class Cases:
    """The cases by name; each returns a result that a test checks."""

    def __init__(self, spark: SparkSession, settings: Mapping[str, str]) -> None:
        self.spark = spark
        self.settings = settings
        self.where = {"address": settings["address"], "topology": TOPOLOGY}

    def use(self, interpreter: str) -> None:
        """Set the executors' interpreter; PYSPARK_PYTHON would set it only at the start."""
        self.spark.sparkContext.pythonExec = interpreter
        register(self.spark)

    def write(self, spark: SparkSession, tasks: str, **more: str) -> None:
        """Write rows to tasks, from one partition per executor."""
        rows = spark.range(0, ROWS, 1, 2).selectExpr("cast(id as string) as message")
        options = {"topology": TOPOLOGY, "grouping": "shuffle", "tasks": tasks, **more}
        rows.write.format("tuplewire").mode("append").options(**options).save()

    def read(self, spark: SparkSession, tasks: str) -> int:
        """Count the distinct rows in tasks."""
        frame = spark.read.format("tuplewire").options(**self.where, tasks=tasks).load()
        return frame.select("message").distinct().count()

    def sink(self) -> int:
        """Write through the worker next to each executor, and read through any worker."""
        self.use(self.settings["wheel"])
        self.write(self.spark, "1,2")
        return self.read(self.spark, "1,2")

    def archive(self) -> tuple[int, list[str]]:
        """Write and read with the interpreter of spark.archives."""
        self.use("./environment/bin/python")
        self.write(self.spark, "7,8", address=self.where["address"])
        # mapInArrow would need pandas there.
        found = self.spark.sparkContext.parallelize(range(2), 2).map(lambda _: place()).collect()
        return self.read(self.spark, "7,8"), found

    def artifact(self) -> tuple[int, list[str]]:
        """Write and read with an interpreter that receives Tuplewire through addArtifact."""
        self.use(self.settings["bare"])
        session = self.spark.newSession()
        session.addArtifact(self.settings["artifact"], pyfile=True)
        register(session)
        self.write(session, "9,10", address=self.where["address"])
        return self.read(session, "9,10"), places(session)


def place() -> str:
    """Return the location of Tuplewire in an executor."""
    import tuplewire

    return tuplewire.__file__


def places(spark: SparkSession) -> list[str]:
    """Return the location of Tuplewire in each of two tasks."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"place": [place()]})

    return [row.place for row in spark.range(0, 2, 1, 2).mapInArrow(look, "place string").collect()]


def main(text: str) -> None:
    """Run every case."""
    settings = json.loads(text)
    # Executors must use only the packages of their interpreter.
    del os.environ["PYTHONPATH"]
    conf = {
        "spark.task.maxFailures": "1",  # a retry would fail again
        "spark.archives": f"{settings['archive']}#environment",
        # Both executors must exist before the first task starts. A standalone cluster waits for cores.max.
        "spark.cores.max": "4",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    }
    with local_cluster("cluster", settings["work"], conf, cores=2) as spark:
        cases = Cases(spark, settings)
        for case in (cases.sink, cases.archive, cases.artifact):
            report(case.__name__, case())


if __name__ == "__main__":
    main(*sys.argv[1:])
