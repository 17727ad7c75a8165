"""How many tasks Spark runs at the same time: its slots. Asked before anything waits for one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tuplewire.errors import ConfigError
from tuplewire.spark.releases import is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check_slots(spark: SparkSession, tasks: int, what: str = "the program") -> None:
    """Raise ConfigError when Spark cannot run so many PySpark tasks at the same time.

    tasks: those that wait for each other, and so have to run together; for streaming queries beside them add
    one. what: who needs them, for the error. Spark itself would let them wait without a word, or for ten
    minutes where they are a barrier stage. Over Spark Connect the slots are known for local masters only:
    elsewhere this does nothing. It counts what Spark has, busy or not.
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
