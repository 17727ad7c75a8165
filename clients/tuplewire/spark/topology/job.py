"""A Spark job in a thread of its own: described, cancelled and watched, on Spark and over Spark Connect."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tuplewire.errors import ConfigError, TuplewireError
from tuplewire.spark.session import is_remote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class JobError(TuplewireError):
    """Spark has given a topology's job up; the message has its reason."""


def check_slots(spark: SparkSession, members: int) -> None:
    """Raise ConfigError when Spark cannot run so many PySpark tasks at the same time.

    Spark itself tells that only after ten minutes. Over Spark Connect it can be known for local masters.
    """
    slots = _local_slots(spark.conf.get("spark.master", "") or "") if is_remote(spark) else _slots(spark)
    if slots is not None and slots < members:
        raise ConfigError(
            f"the topology runs as {members} PySpark tasks at the same time, and Spark has {slots} slot(s): "
            f"give it more cores or executors (and wait until they are there), or lower topology.workers"
        )


def _slots(spark: SparkSession) -> int:
    """Return what Spark itself compares with, which is not public; where a Spark has none, the cores.

    These (defaultParallelism) are too many where a task needs several (spark.task.cpus), and whatever the
    user says where spark.default.parallelism is set.
    """
    context = spark.sparkContext
    try:
        scala: Any = context._jsc.sc()
        return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))
    except Exception:  # noqa: BLE001 - whatever py4j says where there is no such method
        return context.defaultParallelism


def _local_slots(master: str) -> int | None:
    inner = master.removeprefix("local[").removesuffix("]").partition(",")[0]
    return int(inner) if inner.isdigit() else 1 if master == "local" else None


class Job:
    """An action on a DataFrame. group: its job group, or its tag over Spark Connect.

    description: what Spark's UI shows. Its PySpark tasks are not interrupted when it is cancelled: they have
    spark.python.task.killTimeout to end.
    """

    def __init__(self, spark: SparkSession, description: str, action: Callable[[], DataFrame]) -> None:
        self.group = f"tuplewire-{uuid.uuid4().hex}"
        self.result: Any = None
        self.error: Exception | None = None
        self._spark = spark
        self._description = f"tuplewire {description}"
        self._action = action
        self._done = threading.Event()

    def start(self, ended: Callable[[], None]) -> None:
        """Start it; ended: called in its thread at its end, before wait() knows of it."""
        from pyspark import InheritableThread

        InheritableThread(target=self._main, args=(ended,), session=self._spark, daemon=True).start()

    def _main(self, ended: Callable[[], None]) -> None:
        try:
            if is_remote(self._spark):
                self._spark.addTag(self.group)
            else:
                context = self._spark.sparkContext
                context.setJobGroup(self.group, self._description, interruptOnCancel=False)
            self.result = self._action()
        except Exception as error:  # noqa: BLE001 - handed to whoever asks for the result
            self.error = error
        try:
            ended()
        finally:
            self._done.set()

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._done.is_set()

    @property
    def was_cancelled(self) -> bool:
        """Whether its error is that it was cancelled."""
        text = str(self.error)
        return self.error is not None and ("cancelled" in text or "INTERRUPTED" in text or "CANCELED" in text)

    def wait(self, timeout: float | None) -> bool:
        """Wait for its end; False when so many seconds are over first."""
        return self._done.wait(timeout)

    def cancel(self) -> None:
        """Cancel it."""
        if is_remote(self._spark):
            self._spark.interruptTag(self.group)
        else:
            self._spark.sparkContext.cancelJobGroup(self.group)
