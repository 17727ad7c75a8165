"""A local Spark session with a JVM of its own."""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tuplewire.errors import ConfigError
from tuplewire.spark.releases import use_in_this_thread
from tuplewire_demos.java import find_java, wrapped_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tuplewire.processes.worker_processes import WorkerProcesses
    from tuplewire_demos.report import Progress

_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""A JVM that runs for seconds only starts quickly with these."""
_END_SECONDS = 60.0
"""How long the JVM has to end."""
_PY4J_LOGS = ("", "py4j.clientserver", "py4j.java_gateway")
_LOGGING = """\
status = off
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex
# Spark gives this logger's level to all of them, and says so, unless it is the root's.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
"""


@contextmanager
def local_session(
    app_name: str,
    *,
    cores: int | None = None,
    memory: str = "1g",
    log_level: str = "fatal",
    conf: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Start Spark in this process's own JVM; on leaving, stop both and wait for them.

    cores: how many tasks run at the same time; default: as many as the machine has processors. They are
    threads, so more than that is allowed. memory: the JVM's heap. log_level: of Spark's own log, to
    stderr. conf: further Spark settings, which win over those made here.

    The Python workers run this very interpreter. Ctrl-C raises KeyboardInterrupt, and nothing else.

    Raises ConfigError when pyspark or Java is missing, when this process has a session already, or when it is
    a client of Spark Connect.
    """
    if find_spec("pyspark") is None:
        raise ConfigError("pyspark is not installed: run pip install 'tuplewire[spark]'")
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        raise ConfigError("this process has a Spark session already: use that one, or stop it first")
    for variable in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        if os.environ.get(variable):
            raise ConfigError(
                f"this process is a client of Spark Connect ({variable} is set), and can have no Spark of "
                "its own beside that: unset it, or start another process"
            )
    java = find_java()
    with TemporaryDirectory(prefix="tuplewire-spark-") as directory, ExitStack() as stack:
        log = Path(directory, "log4j2.properties")
        log.write_text(_LOGGING.format(level=log_level), encoding="utf-8")
        settings = {
            "spark.driver.memory": memory,
            "spark.driver.extraJavaOptions": f"{_JVM} -Dlog4j2.configurationFile={log.as_uri()}",
            # Of executors in JVMs of their own, where `conf` asks for them (spark.master=local-cluster[...]).
            "spark.executor.extraJavaOptions": _JVM,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # Spark gives a Python worker 15 seconds to start, which a busy machine does not always have.
            "spark.python.authenticate.socketTimeout": "120s",
            # Else Spark may report only with the next heartbeat, ten seconds later, that a task runs.
            "spark.ui.liveUpdate.period": "0",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
            # See docs/how-to/spark.md, on large rows.
            "spark.sql.execution.arrow.maxBytesPerBatch": "4m",
            **(conf or {}),
        }
        builder = SparkSession.builder.master(f"local[{cores or os.cpu_count() or 1}]").appName(app_name)
        for key, value in settings.items():
            builder = builder.config(key, value)
        environment = {
            "JAVA_HOME": str(wrapped_home(java, Path(directory, "java"))),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            # spark-submit starts a JVM only to compose the command line of the real one.
            "SPARK_LAUNCHER_OPTS": _JVM,
        }
        stack.enter_context(_quiet_interrupts())
        stack.callback(_end_jvm)
        # In the main thread PySpark would handle Ctrl-C itself: it would have the JVM cancel all jobs in the
        # middle of another request. So Ctrl-C waits until there is a JVM that can be ended.
        with _environment(environment), ThreadPoolExecutor(1) as starting:
            spark = starting.submit(builder.getOrCreate).result()
        use_in_this_thread(spark)
        try:
            yield spark
        except Exception:
            spark.stop()
            raise
        # After an interrupt it is not asked to stop: half an answer of the JVM may be in transit.
        spark.stop()


@contextmanager
def spark_and_workers(
    topology: str, arguments: argparse.Namespace, cores: int, progress: Progress
) -> Iterator[tuple[SparkSession, WorkerProcesses]]:
    """Start Spark and the workers of a topology at the same time; arguments: of the command."""
    from tuplewire.processes.worker_processes import WorkerProcesses

    progress.stage(f"Starting Spark, and {arguments.workers} worker(s) ...")
    # After a failed run nobody takes the rest, and after any other there is none.
    flags = [f"--transport={arguments.transport}", "--drain-seconds=1"]
    # Silence gRPC's connection messages on the user's terminal.
    conf = {"spark.executorEnv.GRPC_VERBOSITY": "ERROR"}
    with ExitStack() as stack:
        workers = WorkerProcesses(arguments.workers, topology, flags=flags)
        stack.callback(workers.stop)
        # Beside Spark, whose start takes longer. They are not talked to before: Spark forks, and that is best
        # done before this process has anything of gRPC.
        started = stack.enter_context(ThreadPoolExecutor(1)).submit(workers.start)
        spark = stack.enter_context(local_session(f"tuplewire-{topology}", cores=cores, conf=conf))
        started.result()
        for each in workers.endpoints:
            progress.note(f"Metrics of {each.worker_id} while it runs: {each.metrics_url}")
        yield spark, workers
        progress.wait("Ending Spark and the workers ...")


def _end_jvm() -> None:
    """End the JVM of this process, if there is one. A second interrupt ends it by force."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    process: subprocess.Popen[bytes] = gateway.proc
    assert process.stdin is not None  # noqa: S101 - PySpark has opened it
    process.stdin.close()  # without which the JVM ends
    gateway.shutdown_callback_server()
    try:
        process.wait(_END_SECONDS)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        process.kill()
        process.wait()


@contextmanager
def _quiet_interrupts() -> Iterator[None]:
    """Have Py4J log no tracebacks of interrupts."""
    logs = [logging.getLogger(name) for name in _PY4J_LOGS]
    for log in logs:
        log.addFilter(_is_no_interrupt)
    try:
        yield
    finally:
        for log in logs:
            log.removeFilter(_is_no_interrupt)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is None


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]
        os.environ.update(before)
