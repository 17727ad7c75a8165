"""The executors of a Spark application, their slots, and the membership of the workers next to them.

Used by programs through tuplewire.spark. Slots are the tasks that Spark can run at the same time. Owns no
state except a reference to the driver's JVM. Thread-safe. Design: docs/design/moves.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from tuplewire.errors import ConfigError, UnreachableError
from tuplewire.membership import Membership, MembershipKeywords, Workers
from tuplewire.settings.addresses import join_host_port
from tuplewire.settings.keywords import expand_keywords
from tuplewire.spark.features import is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_PORT = 6700


@dataclass(frozen=True, slots=True)
class SparkExecutor:
    """An executor: its id in Spark, and its host; on Kubernetes, its pod's address."""

    id: str
    host: str


class Executors:
    """Lists the executors from the driver's JVM. Raises ConfigError without a driver that has executors."""

    def __init__(self, spark: SparkSession) -> None:
        if is_remote(spark):
            raise ConfigError(
                "over Spark Connect the executors are not known to this program: name the workers by "
                "workers=, or run it where the Connect server's driver is"
            )
        context = spark.sparkContext
        java: Any = context._jsc.sc()
        if java.isLocal():
            raise ConfigError(
                f"Spark runs in this process (master {context.master}), without executors: name the workers "
                "by workers=, or leave out the membership, and pass the address of a worker to the tasks"
            )
        self._context = java

    def __call__(self) -> list[SparkExecutor]:
        """Return the executors that run, except those that are being decommissioned or killed.

        Raises UnreachableError if Spark does not answer, for example after its session ended.
        """
        from py4j.protocol import Py4JError

        try:
            backend, known = self._context.schedulerBackend(), self._context.statusStore().executorList(True)
            found = [known.apply(index) for index in range(known.size())]
            named = [(each.id(), each.hostPort()) for each in found]
            # An executor that is being decommissioned or killed is still listed, but not active.
            return [
                SparkExecutor(executor_id, _host_of(host_port))
                for executor_id, host_port in named
                if backend.isExecutorActive(executor_id)
            ]
        except (Py4JError, OSError) as error:
            raise UnreachableError(
                f"Spark does not list its executors: {error!r}; check that its session is running"
            ) from error


def _host_of(host_port: str) -> str:
    """Return the host of host:port, or a host without a port unchanged: Spark reports both."""
    host, colon, port = host_port.rpartition(":")
    return host if colon and port.isdigit() and (host.endswith("]") or ":" not in host) else host_port


@expand_keywords(MembershipKeywords, vars(Membership)["__init__"].__kwdefaults__)
def membership(
    spark: SparkSession,
    tasks: Collection[int],
    *,
    port: int = DEFAULT_PORT,
    worker_address: Callable[[SparkExecutor], str | None] | None = None,
    workers: Workers | None = None,
    **settings: Unpack[MembershipKeywords],
) -> Membership:
    """Return the membership of the workers next to the executors; enter it in a with statement.

    An executor that Spark decommissions or kills counts as leaving immediately, so that its worker can
    forward its messages before the pod ends.

    Args:
        spark: The session of the executors.
        tasks: All tasks of the topology.
        port: The workers' port on the executors' hosts.
        worker_address: Instead of `port`: returns the address of an executor's worker, or None for no worker.
        workers: Addresses, or a function that returns them, instead of the executors: over Spark Connect, or
            with workers outside of Spark.
        **settings: Keywords of Membership, such as topology and min_workers.

    Raises:
        ConfigError: Spark has no executors, or an argument is wrong.
    """
    if workers is not None:
        return Membership(workers, tasks, **settings)
    executors = Executors(spark)
    address_of = worker_address or (lambda executor: join_host_port(executor.host, port))

    def discover() -> dict[str, str]:
        found = [(address_of(executor), executor) for executor in executors()]
        return {address: f"executor {executor.id}" for address, executor in found if address}

    return Membership(discover, tasks, **settings)


def check_slots(spark: SparkSession, n_tasks: int, program: str = "the program") -> None:
    """Raise ConfigError if Spark cannot run this number of PySpark tasks at the same time.

    Spark itself would let the tasks wait without a message, or for ten minutes in a barrier stage. All slots
    count, busy or not. Over Spark Connect, this does nothing unless the master is local.

    Args:
        n_tasks: The number of tasks that wait for each other; plus one with a streaming query next to them.
        program: The name of the caller, for the error.
    """
    slots = _local_slots(spark.conf.get("spark.master", "") or "") if is_remote(spark) else _slots(spark)
    if slots is not None and slots < n_tasks:
        raise ConfigError(
            f"{program} runs {n_tasks} PySpark tasks at the same time, and Spark has {slots} slot(s): give "
            f"it more cores, such as local[{n_tasks}], or run fewer. Where executors start late, "
            "spark.scheduler.minRegisteredResourcesRatio=1 and "
            "spark.scheduler.maxRegisteredResourcesWaitingTime=5m have Spark wait for them "
            "(a standalone cluster needs spark.cores.max, too)"
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
