"""The spouts and bolts of the flights demo, as PySpark tasks.

Used by flights.py. A bolt owns its sums. Not thread-safe. Design: docs/design/rows-and-memory.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tuplewire.values.arrow_rows import route_rows, unpack_rows
from tuplewire.values.batch import TaskMessageBatch
from tuplewire_demos.attachment import Attachment
from tuplewire_demos.flight_lines import COLUMNS, FlightReader
from tuplewire_demos.stream import Outlet, receive
from tuplewire_demos.text import SkipTally, report
from tuplewire_topology import fields

if TYPE_CHECKING:
    from pyspark import Accumulator

LATE_MINUTES = 15

SCHEMA = pa.schema(
    [
        ("carrier", pa.string()),
        ("flights", pa.int64()),
        ("mean_delay", pa.float64()),
        ("late_share", pa.float64()),
        ("busiest_route", pa.string()),
        ("route_flights", pa.int64()),
    ]
)
"""The result: one row for each carrier. The mean (minutes) and the share exclude cancelled flights."""

_PARTS = 64
"""The number of messages for which a bolt stores separate sums before it combines them."""


@dataclass(frozen=True, slots=True)
class ReadOnly:
    """Reads the flights of a partition like a spout, but sends none."""

    reader: FlightReader

    def __call__(self, partition: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run in a PySpark task (mapInArrow); yield a report."""
        tally = SkipTally()
        rows = sum(len(tally.split(self.reader.read(lines))) for lines in partition)
        yield report(tally, rows=rows)


@dataclass(frozen=True, slots=True)
class FlightSpout:
    """Sends the flights of a partition to the bolts; all flights of a carrier to the same bolt."""

    reader: FlightReader
    attachment: Attachment
    bolts: Sequence[int]
    first_task: int
    n_spouts: int

    def __call__(self, partition: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run in a PySpark task (mapInArrow); yield the spout's report."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark runs this in a task only
        task = self.first_task + context.partitionId()
        grouping = fields(self.bolts)
        tally = SkipTally()
        rows, seconds = 0, 0.0
        with self.attachment.client(task) as client:
            outlet = Outlet(client, task, self.bolts, self.n_spouts)
            for lines in partition:
                flights = tally.split(self.reader.read(lines)).select(COLUMNS)
                started = time.monotonic()
                # The grouping chooses a bolt once for each carrier of a batch, not for each flight.
                carriers = flights.column("carrier").dictionary_encode()
                chosen = pa.array(grouping.choose(carriers.dictionary.to_pylist()), pa.int32())
                tasks, payloads = route_rows(chosen.take(carriers.indices), flights)
                outlet.send(TaskMessageBatch.from_columns(tasks, payloads, task))
                rows += len(flights)
                seconds += time.monotonic() - started
            started = time.monotonic()
            outlet.end()
            seconds += time.monotonic() - started
        crossed = sum(sent for bolt, sent in outlet.sent.items() if self.attachment.crosses(task, bolt))
        messages = sum(outlet.sent.values())
        yield report(tally, source=task, messages=messages, crossed=crossed, rows=rows, seconds=seconds)


@dataclass(frozen=True, slots=True)
class DelayBolt:
    """Aggregates the flights that a task receives. seconds: accumulates the time for this."""

    attachment: Attachment
    seconds: Accumulator[float]

    def __call__(self, task: int) -> Iterator[pa.RecordBatch]:
        """Run in a PySpark task; yield rows of SCHEMA after every spout has finished."""
        delays = _Delays()
        seconds = 0.0
        with self.attachment.client(task) as client:
            for group in receive(client, task):
                started = time.monotonic()
                for payload in group.payloads():
                    delays.add(unpack_rows(payload))
                seconds += time.monotonic() - started
        self.seconds.add(seconds)
        yield delays.result()


class _Delays:
    """Tables of sums, with a row for each carrier and route."""

    def __init__(self) -> None:
        self._parts: list[pa.Table] = []

    def add(self, flights: pa.RecordBatch) -> None:
        """Add flights, given as columns."""
        delay = flights.column("dep_delay")
        columns = {
            "carrier": flights.column("carrier"),
            "route": pc.binary_join_element_wise(flights.column("origin"), flights.column("dest"), "-"),
            "flights": pa.repeat(1, len(flights)),
            "departed": delay.is_valid().cast(pa.int64()),
            "minutes": pc.fill_null(delay, 0.0),
            "late": pc.fill_null(pc.greater(delay, LATE_MINUTES), fill_value=False).cast(pa.int64()),
        }
        self._parts.append(_summed(pa.table(columns)))
        if len(self._parts) == _PARTS:
            self._parts = [_summed(pa.concat_tables(self._parts))]

    def result(self) -> pa.RecordBatch:
        """Return the sums as rows of SCHEMA."""
        routes = _summed(pa.concat_tables(self._parts)).to_pylist() if self._parts else []
        carriers: dict[str, list[dict[str, Any]]] = {}
        for row in routes:
            carriers.setdefault(row["carrier"], []).append(row)
        return pa.RecordBatch.from_pylist([_row(carrier, rows) for carrier, rows in carriers.items()], SCHEMA)


def _summed(table: pa.Table) -> pa.Table:
    names = ["flights", "departed", "minutes", "late"]
    sums = table.group_by(["carrier", "route"], use_threads=False).aggregate(
        [(name, "sum") for name in names]
    )
    return sums.select(["carrier", "route", *(f"{name}_sum" for name in names)]).rename_columns(
        ["carrier", "route", *names]
    )


def _row(carrier: str, routes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    flights, departed, minutes, late = (
        sum(route[name] for route in routes) for name in ("flights", "departed", "minutes", "late")
    )
    # Among equally busy routes, the first by name, like the groupBy of flight_check.py.
    busiest = min(routes, key=lambda route: (-route["flights"], route["route"]))
    return {
        "carrier": carrier,
        "flights": flights,
        "mean_delay": minutes / departed if departed else None,
        "late_share": late / departed if departed else None,
        "busiest_route": busiest["route"],
        "route_flights": busiest["flights"],
    }
