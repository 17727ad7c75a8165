"""The topology of the flights demo: spouts read flights, and bolts compute delays by carrier.

lines -> fields grouping on carrier -> delays; lines that are not flights -> skipped

A tuple holds many flights of a carrier in columns. Used by flights.py. Owns the sums of a bolt.
Not thread-safe. Design: docs/design/rows-and-memory.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tuplewire.settings.config import MIB
from tuplewire.values.arrow_rows import route_rows, unpack_rows
from tuplewire_demos.file_spout import LINES, SKIPPED, SKIPPED_STREAM, FileSpout, Skipped
from tuplewire_demos.flight_lines import FlightReader
from tuplewire_topology import (
    BasicBolt,
    BasicOutputCollector,
    SpoutOutputCollector,
    Stream,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)

LATE_MINUTES = 15
DELAYS = "delays"
"""The component that emits the result, with the fields of SCHEMA."""
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
_TICK_SECONDS = 86_400
"""The bolts need only the last tick."""


def flights_topology(path: Path, header: Sequence[str], *, n_spouts: int, n_bolts: int) -> Topology:
    """Return the topology for a CSV file, which every process must reach. header: its column names."""
    builder = TopologyBuilder()
    builder.set_spout(LINES, Flights(path, FlightReader(header)), n_spouts)
    delays = builder.set_bolt(DELAYS, Delays(), n_bolts).fields_grouping(LINES, "carrier")
    delays.add_configuration("topology.tick.tuple.freq.secs", _TICK_SECONDS)
    builder.set_bolt(SKIPPED, Skipped()).global_grouping(LINES, SKIPPED_STREAM.name)
    return builder.create_topology()


class Flights(FileSpout):
    """Emits the flights of its part of a file: all flights of a carrier to the same bolt."""

    outputs = (Stream("carrier", "flights"), SKIPPED_STREAM)
    piece_bytes = 2 * MIB

    def __init__(self, path: Path, reader: FlightReader) -> None:
        super().__init__(path)
        self.reader = reader

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector
    ) -> None:
        """Skip the header."""
        super().open(conf, context, collector)
        if not self.offset:
            self.offset = len(self.file.readline())

    def tuples_of(self, lines: Iterable[tuple[int, bytes]]) -> Iterator[Sequence[Any]]:
        flights, bad = self.reader.read(lines)
        for skipped in bad:
            self.skip(*skipped)
        carriers = flights.column("carrier").dictionary_encode()
        for index, payload in zip(*route_rows(carriers.indices, flights), strict=True):
            yield carriers.dictionary[index].as_py(), payload


class Delays(BasicBolt):
    """Adds up flights in tables of sums, with a row for each carrier and route."""

    outputs = tuple(SCHEMA.names)

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002 - as declared
        self.parts: list[pa.Table] = []

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        """Add flights. On the last tick, emit the result of each carrier."""
        if not message.is_tick:
            self._add(unpack_rows(message["flights"]))
        elif message.is_last_tick and self.parts:
            carriers: dict[str, list[dict[str, Any]]] = {}
            for row in _summed(pa.concat_tables(self.parts)).to_pylist():
                carriers.setdefault(row["carrier"], []).append(row)
            for carrier, routes in carriers.items():
                collector.emit(_result(carrier, routes))

    def _add(self, flights: pa.RecordBatch) -> None:
        delay = flights.column("dep_delay")
        columns = {
            "carrier": flights.column("carrier"),
            "route": pc.binary_join_element_wise(flights.column("origin"), flights.column("dest"), "-"),
            "flights": pa.repeat(1, len(flights)),
            "departed": delay.is_valid().cast(pa.int64()),
            "minutes": pc.fill_null(delay, 0.0),
            "late": pc.fill_null(pc.greater(delay, LATE_MINUTES), fill_value=False).cast(pa.int64()),
        }
        self.parts.append(_summed(pa.table(columns)))
        if len(self.parts) == _PARTS:
            self.parts = [_summed(pa.concat_tables(self.parts))]


def _summed(table: pa.Table) -> pa.Table:
    keys, names = ["carrier", "route"], ["flights", "departed", "minutes", "late"]
    sums = table.group_by(keys, use_threads=False).aggregate([(name, "sum") for name in names])
    return sums.select([*keys, *(f"{name}_sum" for name in names)]).rename_columns([*keys, *names])


def _result(carrier: str, routes: Sequence[dict[str, Any]]) -> tuple[Any, ...]:
    """Return the values of SCHEMA for a carrier."""
    flights, departed, minutes, late = (
        sum(route[name] for route in routes) for name in ("flights", "departed", "minutes", "late")
    )
    # Among equally busy routes, the first by name, like the groupBy in flights.py.
    busiest = min(routes, key=lambda route: (-route["flights"], route["route"]))
    mean, share = (minutes / departed, late / departed) if departed else (None, None)
    return carrier, flights, mean, share, busiest["route"], busiest["flights"]
