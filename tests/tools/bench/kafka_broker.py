"""A Kafka broker in KRaft mode, with its data in a temporary folder."""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent import HERE, BenchError
from maven import free_ports, java, libraries

from tuplewire.processes.child import Child, Command
from tuplewire_service.testing import eventually

POM = HERE / "kafka" / "broker.xml"
PARTITIONS = 2
_HEAP = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
"""The JVM options of a broker in Kafka's own script."""
_START_SECONDS = 90.0
_STOP_SECONDS = 30.0
_CLUSTER = "dHVwbGV3aXJlLWJlbmNoIQ"
_SETTINGS = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={directory}/log
offsets.topic.replication.factor=1
group.initial.rebalance.delay.ms=0
num.partitions={partitions}
"""
_LOGGING = """\
log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %m (%c)%n
"""


@contextmanager
def broker() -> Iterator[tuple[str, str]]:
    """Run a broker during the block; yield its address and version. NotHereError without its libraries."""
    place = libraries(POM)
    (server,) = place.glob("kafka_2.13-*.jar")
    port, controller = free_ports(2)
    with tempfile.TemporaryDirectory(prefix="tuplewire-kafka-") as made:
        directory = Path(made)
        settings, logging, said = (directory / name for name in ("settings", "logging", "said"))
        settings.write_text(
            _SETTINGS.format(port=port, controller=controller, directory=directory, partitions=PARTITIONS),
            encoding="utf-8",
        )
        logging.write_text(_LOGGING, encoding="utf-8")
        command = [java(), *_HEAP, f"-Dlog4j.configuration={logging.as_uri()}", "-classpath", f"{place}/*"]
        formatting = [*command, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(settings)]
        if code := Child(Command(name="format", arguments=formatting, log_path=said)).wait():
            raise BenchError(f"{' '.join(formatting)} ended with {code}")
        child = Child(
            Command(name="broker", arguments=[*command, "kafka.Kafka", str(settings)], log_path=said)
        )
        try:
            eventually(
                lambda: _listens(port) or child.process.poll() is not None, _START_SECONDS, child.log_tail()
            )
            if child.process.poll() is not None:
                raise BenchError(f"the broker did not start; {child.log_tail()}")
            yield f"127.0.0.1:{port}", server.stem.rpartition("-")[2]
        finally:
            child.process.terminate()
            child.wait_or_kill(time.monotonic() + _STOP_SECONDS)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
