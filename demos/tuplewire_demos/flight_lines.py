"""Parses lines of CSV into columns of flights, in a spout."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Sequence

import pyarrow as pa

COLUMNS = ("carrier", "dep_delay", "origin", "dest")
"""The required columns. dep_delay is in minutes, and empty or NA for a cancelled flight."""
FLIGHTS = pa.schema(
    [("carrier", pa.string()), ("dep_delay", pa.float64()), ("origin", pa.string()), ("dest", pa.string())]
)
_LINES = pa.schema([*FLIGHTS, ("problem", pa.string()), ("id", pa.int64()), ("line", pa.binary())])
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class FlightReader:
    """Parses the lines after the header. header: its column names."""

    def __init__(self, header: Sequence[str]) -> None:
        self._n_columns = len(header)
        self._places = [header.index(name) for name in COLUMNS]

    def read(self, lines: pa.RecordBatch) -> pa.RecordBatch:
        """Return the flights of lines (`id`, and `value` as bytes), as COLUMNS, `id`, `problem` and `line`.

        A line that is not a flight has a `problem`. Empty lines, and the header with id 0, are omitted.
        """
        pairs = zip(lines.column("id").to_pylist(), lines.column("value").to_pylist(), strict=True)
        rows = [(*self._flight(line), number, line) for number, line in pairs if number and line.strip(b" ")]
        columns = list(zip(*rows, strict=True)) or [()] * len(_LINES)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _LINES, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_LINES)

    def flights(self, partition: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the flights of a partition without bad lines, as FLIGHTS; for mapInArrow."""
        for lines in partition:
            read = self.read(lines)
            yield read.filter(read.column("problem").is_null()).select(COLUMNS)

    def _flight(self, line: bytes) -> tuple[str, float | None, str, str, str | None]:
        """Return the fields of a line, and its problem or None."""
        try:
            (row,) = csv.reader([line.decode()], strict=True)
        except UnicodeDecodeError:
            return "", None, "", "", "is not UTF-8"
        except csv.Error:
            row = []
        if len(row) != self._n_columns or line.count(b'"') % 2:
            return "", None, "", "", f"has not the header's {self._n_columns} columns"
        carrier, delay, origin, dest = (row[place].strip() for place in self._places)
        for name, value in (("carrier", carrier), ("origin", origin), ("dest", dest)):
            if not value:
                return carrier, None, origin, dest, f"has no {name}"
        if delay in {"", "NA"}:
            return carrier, None, origin, dest, None
        minutes = float(delay) if _NUMBER.fullmatch(delay) else math.nan
        problem = None if math.isfinite(minutes) else "has a dep_delay that is no number"
        return carrier, minutes, origin, dest, problem
