"""The check of the flights' result against Spark's own groupBy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tuplewire_demos.flight_topology import LATE_MINUTES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

_TOLERANCE = 1e-9


def expected(flights: DataFrame) -> DataFrame:
    """Return the result of Spark's own groupBy for the same flights, as rows of SCHEMA."""
    from pyspark.sql import functions as F  # noqa: N812

    late = F.col("dep_delay") > LATE_MINUTES
    routes = flights.groupBy("carrier", F.concat_ws("-", "origin", "dest").alias("route")).agg(
        F.count("*").alias("flights"),
        F.count("dep_delay").alias("departed"),
        F.sum("dep_delay").alias("minutes"),
        F.count_if(late).alias("late"),
    )
    busiest = F.min(F.struct((-F.col("flights")).alias("flights"), "route"))  # most flights, then by name
    return (
        routes.groupBy("carrier")
        .agg(
            F.sum("flights").alias("flights"),
            F.try_divide(F.sum("minutes"), F.sum("departed")).alias("mean_delay"),
            F.try_divide(F.sum("late"), F.sum("departed")).alias("late_share"),
            busiest.alias("busiest"),
        )
        .select(
            "carrier",
            "flights",
            "mean_delay",
            "late_share",
            F.col("busiest.route").alias("busiest_route"),
            (-F.col("busiest.flights")).alias("route_flights"),
        )
    )


def differences(rows: Sequence[Row], wanted: Sequence[Row]) -> list[str]:
    """Return the differences of two results: any in counts and names, above 1e-9 in means and shares."""
    ours = {row["carrier"]: row for row in rows}
    theirs = {row["carrier"]: row for row in wanted}
    found = []
    if len(ours) != len(rows):
        found.append("a carrier has more than one row")
    for carrier in sorted(ours.keys() | theirs.keys()):
        if carrier not in ours or carrier not in theirs:
            found.append(f"{carrier}: only in {'ours' if carrier in ours else 'Spark'}")
            continue
        for name, value in ours[carrier].asDict().items():
            other = theirs[carrier][name]
            if not _same(value, other):
                found.append(f"{carrier}: {name} is {value}, Spark has {other}")
    return found


def _same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    return one == other
