"""Sensors: a streaming pipeline. Temperatures, what is unusual among them, and sums by window.

readings (a streaming DataFrame) -> fields grouping on sensor -> bolts (PySpark tasks) -> windows (another)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from tuplewire.batch import TaskMessageBatch
from tuplewire.errors import ConfigError
from tuplewire.group import TaskGroup
from tuplewire.topology import fields
from tuplewire_demos.attachment import Attachment, spread
from tuplewire_demos.course import WINDOW_SECONDS, Course

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SENSORS = 20
N_WINDOW_TASKS = 2

BOLT_SCHEMA = "task int, readings bigint"
"""What a bolt yields when it has ended: one row."""

END = b""
"""A bolt that gets it has had everything, and ends."""

_OUTLIER_EVERY = 997
_UNUSUAL_CELSIUS = 10.0
_WEIGHT = 0.1
"""Of a new reading in the running mean."""
_READING = "sensor string, at timestamp, celsius double, unusual boolean"
_LATE = "10 minutes"
"""Longer than any reading is on its way, so that none is left out."""


@dataclass(frozen=True, slots=True)
class StreamTasks:
    """The task ids: those of the bolts, and those that the windows are read from."""

    bolts: range
    windows: range

    @classmethod
    def of(cls, n_bolts: int) -> StreamTasks:
        """Return tasks numbered from 1; ConfigError for no bolt."""
        if n_bolts < 1:
            raise ConfigError(f"a streaming pipeline needs at least one bolt, not {n_bolts}")
        return cls(range(1, n_bolts + 1), range(n_bolts + 1, n_bolts + 1 + N_WINDOW_TASKS))

    def placed(self, n_workers: int) -> dict[int, list[int]]:
        """Return the tasks of each worker, by its index."""
        return spread(self.bolts, self.windows, n_workers=n_workers)


def assignment_for(n_workers: int, n_bolts: int = 2) -> dict[int, list[int]]:
    """Return the tasks of each worker, by its index."""
    return StreamTasks.of(n_bolts).placed(n_workers)


def readings(spark: SparkSession, course: Course) -> DataFrame:
    """Return made-up temperatures as they come, as `key` (the sensor) and `message` (JSON)."""
    rate = spark.readStream.format("rate").option("rowsPerSecond", course.rows_per_second).load()
    outlier = f"if(number % {_OUTLIER_EVERY} = 0, 2 * {_UNUSUAL_CELSIUS}, 0)"
    micros = f"{course.origin * 1_000_000} + number * 1000000 div {course.rows_per_second}"
    return (
        rate.selectExpr(f"value + {course.first} as number")
        .selectExpr(
            f"concat('sensor-', number % {SENSORS}) as sensor",
            f"timestamp_micros({micros}) as at",
            f"20 + 5 * sin(number / 1000) + {outlier} as celsius",
        )
        .selectExpr("sensor as key", "to_json(struct(sensor, at, celsius)) as message")
    )


@dataclass(frozen=True, slots=True)
class SensorBolt:
    """Keeps a running mean of each of its sensors, and marks what is far from it."""

    attachment: Attachment
    tasks: StreamTasks

    def __call__(self, task: int) -> Iterator[pa.RecordBatch]:
        """Run in a PySpark task until END comes; yields a row of BOLT_SCHEMA."""
        means: dict[str, float] = {}
        grouping = fields(self.tasks.windows)
        count = 0
        with self.attachment.client(task) as client, client.recv([task]) as batches:
            for batch in batches:
                for group in batch.groups:
                    if marked := _mark(group, means):
                        sensors = [sensor for sensor, _ in marked]
                        messages = [message for _, message in marked]
                        client.send(TaskMessageBatch.from_columns(grouping.choose(sensors), messages, task))
                        count += len(marked)
                # Asking for the next batch acknowledges this one: what it led to must be there by then.
                client.flush()
                if any(END in group.payloads() for group in batch.groups if not all(group.sizes())):
                    batches.acknowledge()
                    break
        columns = [pa.array([task], pa.int32()), pa.array([count], pa.int64())]
        yield pa.RecordBatch.from_arrays(columns, ["task", "readings"])


def _mark(group: TaskGroup, means: dict[str, float]) -> list[tuple[str, bytes]]:
    """Return each reading's sensor and message, and bring the means up to date."""
    marked = []
    for reading in json.loads(b"[%b]" % b",".join(filter(None, group.payloads()))):
        sensor, celsius = reading["sensor"], reading["celsius"]
        mean = means.get(sensor, celsius)
        means[sensor] = mean + _WEIGHT * (celsius - mean)
        reading["unusual"] = abs(celsius - mean) > _UNUSUAL_CELSIUS
        marked.append((sensor, json.dumps(reading).encode()))
    return marked


def windows(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Return a row for each window and sensor, of what the bolts have sent: a later row replaces an earlier.

    unusual: how many readings are far from the sensor's running mean.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's users know

    messages = spark.readStream.format("tuplewire").options(**options).load()
    reading = F.from_json(F.col("message").cast("string"), _READING)
    return (
        messages.select(reading.alias("reading"))
        .select("reading.*")
        .withWatermark("at", _LATE)
        .groupBy(F.window("at", f"{WINDOW_SECONDS} seconds"), "sensor")
        .agg(
            F.count("*").alias("readings"),
            F.avg("celsius").alias("mean_celsius"),
            F.count_if("unusual").alias("unusual"),
        )
        .select(F.col("window.start").alias("start"), "sensor", "readings", "mean_celsius", "unusual")
    )
