"""Compare one hop to Storm's own Netty transport: two JVMs with the client library that Storm publishes.

It needs Maven and a JDK of Java 17 or newer. If the library is not available, it reports that and measures
nothing. Storm's transport neither acknowledges nor resends messages; Tuplewire does both.

Exit status: 0 if every message arrived once, or nothing could be measured; 1 if one was lost or duplicated.
"""

from __future__ import annotations

import os
import platform
import sys
import time

from agent import HERE, parser_of
from links import Cell, Link, LinkName, Links
from maven import free_ports, java, libraries, outcome
from report import progress, table
from rows import Row, latency_row, measure
from run import LATENCY_ROUNDS, ROUNDS

POM = HERE / "storm" / "pom.xml"
_JVM = ("-Xmx768m", "-XX:+UseG1GC")
"""The JVM options of a worker by Storm's defaults."""
_WARM_SECONDS = 3.0
_SECONDS, _LATENCY_SECONDS = 72.0, 18.0
"""The time of all trials together."""


def _row(frame: int, target: float | None) -> Row[Cell]:
    title = f"one hop, lists of {frame}, each payload read"
    return Row(f"storm/{frame}", title, Cell("hop", frame, "touch"), {Cell("storm", frame): target})


ROWS = (
    Row(
        "storm/sends",
        "client.send(task, payload) in a loop, one worker, read one by one",
        Cell("sends", 1, "touch"),
        {Cell("storm", 1): None},
    ),
    _row(1, None),
    _row(1000, 1.5),
    _row(4000, 1.2),
)
LATENCY_ROW = latency_row("storm/latency", "one hop", "hop", {"storm": None})


class StormLinks(Links):
    """The links of the bench, and Storm's link."""

    def __init__(self) -> None:
        super().__init__()
        place = libraries(POM)
        (library,) = place.glob("storm-client-*.jar")
        self.version = library.stem.rpartition("-")[2]
        self._runner = (java(), *_JVM, "-Dlog4j2.level=ERROR", "-classpath", f"{place}/*")

    def _start(self, name: LinkName) -> Link:
        if name != "storm":
            return super()._start(name)
        (port,) = free_ports(1)
        script = str(POM.parent / "Hop.java")
        server = self.agent([*self._runner, script, "server", str(port)])
        server.ask("begin", look="count")  # answered once it listens
        link = Link(name, self.agent([*self._runner, script, "client", str(port)]), server)
        for frame in (1, 1000):
            progress(f"Storm's JVMs warm up: lists of {frame}")
            link.trial(Cell(name, frame), _WARM_SECONDS)
        return link


def main() -> int:
    """Measure, and print the table."""
    parser_of(__doc__).parse_args()
    return outcome("bench-storm", _measured)


def _measured() -> str:
    """Return the table and the text below it."""
    started = time.monotonic()
    with StormLinks() as links:
        lines = measure(ROUNDS, ROWS, links, [row.name for row in ROWS], _SECONDS)
        lines += measure(LATENCY_ROUNDS, [LATENCY_ROW], links, [LATENCY_ROW.name], _LATENCY_SECONDS)
        links.still()
    return (
        f"{table(lines)}\n\n"
        f"Storm {links.version}, Python {platform.python_version()}, {os.cpu_count()} cores, load "
        f"{os.getloadavg()[1]:.1f} over the last 5 minutes, {time.monotonic() - started:.0f} s in all.\n"
        "Compare the ratios; the rates belong to this machine and moment. Nothing was lost or doubled,\n"
        "and what was numbered came in order."
    )


if __name__ == "__main__":
    sys.exit(main())
