"""An application for spark-submit: submitted.py ADDRESS, with Tuplewire from --py-files.

Writes a thousand rows to tasks 11 and 12. Prints, as JSON, the number of rows in these tasks and the location
of Tuplewire in the driver and in an executor.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

import tuplewire
from tuplewire.spark import register


def place() -> str:
    """Return the location of Tuplewire."""
    import tuplewire

    return tuplewire.__file__


def main(address: str) -> None:
    """Write and read."""
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    where = {"address": address, "topology": "spark", "tasks": "11,12"}
    rows = spark.range(0, 1000, 1, 2).selectExpr("cast(id as string) as message")
    rows.write.format("tuplewire").mode("append").options(**where, grouping="shuffle").save()
    frame = spark.read.format("tuplewire").options(**where).load()
    places = spark.sparkContext.parallelize([0], 1).map(lambda _: place()).collect()
    print(json.dumps([frame.select("message").distinct().count(), tuplewire.__file__, *places]))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
