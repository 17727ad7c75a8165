"""The check of the flights' result against Spark's own groupBy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tuplewire_demos.flight_topology import LATE_MINUTES
from tuplewire_demos.report import differences_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

_EXPECTED = """
SELECT
    carrier,
    sum(flights) AS flights,
    try_divide(sum(minutes), sum(departed)) AS mean_delay,
    try_divide(sum(late), sum(departed)) AS late_share,
    min_by(route, struct(-flights, route)) AS busiest_route,
    max(flights) AS route_flights
FROM (
    SELECT
        carrier,
        concat_ws('-', origin, dest) AS route,
        count(*) AS flights,
        count(dep_delay) AS departed,
        sum(dep_delay) AS minutes,
        count_if(dep_delay > {late}) AS late
    FROM {flights}
    GROUP BY 1, 2
)
GROUP BY carrier
"""


def expected(flights: DataFrame) -> DataFrame:
    """Return the result of Spark's own groupBy for the same flights, as rows of SCHEMA."""
    return flights.sparkSession.sql(_EXPECTED, flights=flights, late=LATE_MINUTES)


def differences(rows: Sequence[Row], wanted: Sequence[Row]) -> list[str]:
    """Return the differences of two results as text."""
    return differences_of(_values(rows), _values(wanted), "Spark")


def _values(rows: Sequence[Row]) -> dict[str, Any]:
    values = {f"{row['carrier']}: {name}": value for row in rows for name, value in row.asDict().items()}
    return {**values, "the number of rows": len(rows)}
