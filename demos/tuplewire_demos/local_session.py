"""A local Spark session that starts quickly, and what a session of Spark Connect cannot do."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from tuplewire.errors import ConfigError
from tuplewire.spark.releases import is_remote
from tuplewire_demos.java import Java, cache_dir, find_java, wrapped_home
from tuplewire_demos.jvm import GatewayProcess, plain_interrupts
from tuplewire_demos.spark_home import pyspark_place, spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GC = ["-XX:+UseSerialGC"]
_JIT = [*_GC, "-XX:TieredStopAtLevel=1"]

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
    archive: bool = True,
) -> Iterator[SparkSession]:
    """Start Spark in this process's own JVM; on leaving, stop both and wait for them.

    cores: how many tasks run at the same time; default: as many as the machine has processors. They are
    threads, so more than that is allowed. memory: the JVM's heap. log_level: of Spark's own log, to
    stderr. conf: further Spark settings, which win over those made here. archive: whether a JVM may write
    its classes to an archive in the cache directory. The first one of a Java then takes some seconds to stop,
    and all later ones start in half the time.

    The Python workers run this very interpreter.

    Raises ConfigError when pyspark or Java is missing, when this process has a session already, or when it is
    a client of Spark Connect.
    """
    if (installed := pyspark_place()) is None:
        raise ConfigError("pyspark is not installed: run pip install 'tuplewire[spark]'")
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        raise ConfigError("this process has a Spark session already: use that one, or stop it first")
    check_no_remote()
    java = find_java()
    home = spark_home(installed)
    classes = _ClassArchive(java, home, write=archive)
    settings = {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": " ".join(
            [*_JIT, *_native_access(java), *_logging(log_level), *classes.options]
        ),
        # Of executors in JVMs of their own, where `conf` asks for them (spark.master=local-cluster[...]).
        "spark.executor.extraJavaOptions": " ".join([*_JIT, *_native_access(java), *classes.use]),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Spark gives a Python worker 15 seconds to start, which a busy machine does not always have.
        "spark.python.authenticate.socketTimeout": "120s",
        # Else Spark may not tell of a task until the next heartbeat, ten seconds later, that it has started.
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
        "JAVA_HOME": str(wrapped_home(java)),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # spark-submit starts a JVM only to compose the command line of the real one.
        "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
    }
    process = GatewayProcess()
    try:
        with plain_interrupts(), ExitStack() as stack:
            with _environment(environment), process.starting():
                spark = builder.getOrCreate()
            stack.push(partial(_stop, spark, process, classes))
            yield spark
    finally:
        if process.end():
            classes.discard()


def _stop(
    spark: SparkSession,
    process: GatewayProcess,
    classes: _ClassArchive,
    kind: type[BaseException] | None,
    *_: object,
) -> None:
    """Stop both in good order; after an interrupt they are not asked, as half an answer may be on its way."""
    if kind is None or issubclass(kind, Exception):
        spark.stop()
        if process.stop():
            classes.adopt()
        else:
            classes.discard()


def _logging(log_level: str) -> list[str]:
    logging = cache_dir() / f"log4j2-{log_level}.properties"
    text = _LOGGING.format(level=log_level)
    if not logging.exists() or logging.read_text(encoding="utf-8") != text:
        logging.write_text(text, encoding="utf-8")
    return [f"-Dlog4j2.configurationFile={logging.as_uri()}"]


def _native_access(java: Java) -> list[str]:
    """Return what lets Netty and Arrow do what Java 24 begins to warn of."""
    if java.feature < 24:
        return []
    return ["--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow"]


class _ClassArchive:
    """The JVM's loaded classes in a file, for each (Java, pyspark), over one of the bare JVM's.

    A JVM that finds the file unusable starts without it. Both are written under a name of their own and
    renamed when complete, so that no other process ever sees half of one.
    """

    def __init__(self, java: Java, home: Path, *, write: bool) -> None:
        # An archive holds for one class path only.
        place = hashlib.blake2b(str(home).encode(), digest_size=4).hexdigest()
        self._archive = cache_dir() / f"{java.key}-pyspark-{version('pyspark')}-{place}.jsa"
        self._new: Path | None = None
        # Else the JVM complains about every class that does not fit.
        self.use = ["-Xlog:disable", "-Xlog:all=off"]
        """For JVMs that may use it, if it is there."""
        if self._archive.exists():
            self.use.append(f"-XX:SharedArchiveFile={self._archive}")
        self.options = list(self.use)
        """For the JVM that makes it, if it is not."""
        if self._archive.exists() or not write:
            return
        base = _base_archive(java)
        if base is not None:
            self._new = self._archive.with_suffix(f".{os.getpid()}")
            self.options += [f"-XX:SharedArchiveFile={base}", f"-XX:ArchiveClassesAtExit={self._new}"]

    def adopt(self) -> None:
        """Put the new archive, if this JVM has written one, where the next start finds it."""
        if self._new is not None and self._new.exists():
            self._new.replace(self._archive)

    def discard(self) -> None:
        """Remove what this JVM has written of a new archive."""
        if self._new is not None:
            self._new.unlink(missing_ok=True)


def _base_archive(java: Java) -> Path | None:
    """Return the archive of the JVM's own classes, which a trimmed runtime comes without; None: it cannot."""
    archive = cache_dir() / f"{java.key}.jsa"
    if not archive.exists():
        new = archive.with_suffix(f".{os.getpid()}")
        command = [str(java.home / "bin" / "java"), "-Xshare:dump", *_GC, f"-XX:SharedArchiveFile={new}"]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0 or not new.exists():
            return None
        new.replace(archive)
    return archive


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


def check_classic(spark: SparkSession, what: str) -> None:
    """Raise ConfigError when `what` is to run on a session of Spark Connect, and needs a SparkContext."""
    if is_remote(spark):
        raise ConfigError(
            f"{what} needs a SparkContext, which a session of Spark Connect does not have: give it a session "
            "of SparkSession.builder.master(...), or write it as a topology (run_topology): that runs on both"
        )


def check_no_remote() -> None:
    """Raise ConfigError when this process is a client of Spark Connect, or is to become one."""
    for variable in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        if os.environ.get(variable):
            raise ConfigError(
                f"this process is a client of Spark Connect ({variable} is set), and can have no Spark of "
                "its own beside that: unset it, or start another process"
            )
