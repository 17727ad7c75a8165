"""The executors of a Spark application, as the driver knows them, and the workers beside them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from tuplewire.errors import ConfigError, UnreachableError
from tuplewire.membership import Membership, MembershipKeywords, Workers
from tuplewire.settings.addresses import join_host_port
from tuplewire.settings.keywords import naming
from tuplewire.spark.releases import is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_PORT = 6700


@dataclass(frozen=True, slots=True)
class SparkExecutor:
    """An executor: Spark's id for it, and the host where it runs; on Kubernetes its pod's address."""

    id: str
    host: str


class Executors:
    """Asks the driver's JVM for its executors; ConfigError where there are none to be asked for."""

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
                "by workers="
            )
        self._context = java

    def __call__(self) -> list[SparkExecutor]:
        """Return those that run and are to go on: not one that is being decommissioned or killed.

        Raises UnreachableError when Spark does not answer, as after its end.
        """
        from py4j.protocol import Py4JError

        try:
            backend, known = self._context.schedulerBackend(), self._context.statusStore().executorList(True)
            found = [known.apply(index) for index in range(known.size())]
            named = [(each.id(), each.hostPort()) for each in found]
            return [
                SparkExecutor(number, _host_of(host))
                for number, host in named
                if backend.isExecutorActive(number)
            ]
        except (Py4JError, OSError) as error:
            raise UnreachableError(
                f"Spark does not say which executors it has: {error!r}; see whether its session has ended"
            ) from error


def _host_of(host_port: str) -> str:
    """Return the host of host:port; of a host alone, as Spark has it at first, itself."""
    host, colon, port = host_port.rpartition(":")
    return host if colon and port.isdigit() and (host.endswith("]") or ":" not in host) else host_port


@naming(MembershipKeywords, vars(Membership)["__init__"].__kwdefaults__)
def membership(
    spark: SparkSession,
    tasks: Collection[int],
    *,
    port: int = DEFAULT_PORT,
    worker_of: Callable[[SparkExecutor], str | None] | None = None,
    workers: Workers | None = None,
    **settings: Unpack[MembershipKeywords],
) -> Membership:
    """Return the membership of the workers beside the executors; enter it in a with statement.

    tasks: all that the topology has. port: each executor's worker is at the executor's host and this port.
    worker_of: says for an executor where its worker is (host:port; None: it has none), if it is not there.
    workers: addresses to look at instead, or what returns them, where there are no executors to be asked for:
    over Spark Connect, or with workers outside of Spark. settings: those of Membership, like topology and
    at_least.

    An executor that Spark decommissions or kills counts as gone at once, so that its worker has handed over
    what it holds by the time that its pod ends. Raises ConfigError where Spark has no executors to be asked
    for; otherwise what Membership raises.
    """
    if workers is not None:
        return Membership(workers, tasks, **settings)
    executors = Executors(spark)
    place = worker_of or (lambda executor: join_host_port(executor.host, port))

    def look() -> dict[str, str]:
        found = [(place(executor), executor) for executor in executors()]
        return {address: f"executor {executor.id}" for address, executor in found if address}

    return Membership(look, tasks, **settings)
