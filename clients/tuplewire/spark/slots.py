"""Checks Spark's slots, the number of tasks that it can run at the same time, before a task waits for one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tuplewire.errors import ConfigError
from tuplewire.spark.releases import is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check_slots(spark: SparkSession, tasks: int, what: str = "the program") -> None:
    """Raise ConfigError if Spark cannot run this number of PySpark tasks at the same time.

    tasks: the number of tasks that wait for each other; add one for streaming queries that run next to them.
    what: the name of the caller, for the error. Spark itself would let the tasks wait without a message, or
    for ten minutes in a barrier stage. All slots count, busy or not. Over Spark Connect, the slots are known
    only for local masters: for others, this does nothing.
    """
    slots = _local_slots(spark.conf.get("spark.master", "") or "") if is_remote(spark) else _slots(spark)
    if slots is not None and slots < tasks:
        raise ConfigError(
            f"{what} runs {tasks} PySpark tasks at the same time, and Spark has {slots} slot(s): give it "
            f"more cores or executors, such as local[{tasks}], or run fewer. Where executors start late, "
            "spark.scheduler.minRegisteredResourcesRatio=1 and "
            "spark.scheduler.maxRegisteredResourcesWaitingTime=5m have Spark wait for them"
        )


def _slots(spark: SparkSession) -> int:
    """Return the number of slots from Spark's internal method; if that is missing, the number of cores.

    The cores (defaultParallelism) are too many if a task needs several (spark.task.cpus), and are the user's
    value if spark.default.parallelism is set.
    """
    context = spark.sparkContext
    try:
        scala: Any = context._jsc.sc()
        return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))
    except Exception:  # noqa: BLE001 - any error of py4j for a missing method
        return context.defaultParallelism


def _local_slots(master: str) -> int | None:
    inner = master.removeprefix("local[").removesuffix("]").partition(",")[0]
    return int(inner) if inner.isdigit() else 1 if master == "local" else None
