"""Faults on purpose: whether a worker allows them, which are in force and until when, and their metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tuplewire.errors import ConfigError, MalformedError, PermissionDeniedError
from tuplewire.events import event_logger
from tuplewire_service.admin.families import counters, gauge
from tuplewire_service.messaging.base import IContext
from tuplewire_service.messaging.faults import FATES, Faults, parse_faults
from tuplewire_service.messaging.streamed.faulty_stream import FaultyStream, make_faulty
from tuplewire_service.messaging.streamed.streamed_stream import ServerStream
from tuplewire_service.process.worker_config import WorkerConfig

logger = event_logger(__name__)

_MOST_SECONDS = 24 * 3600.0


class FaultControl(Collector):
    """One worker's. Methods belong to the event loop, unless they say otherwise."""

    def __init__(self, config: WorkerConfig) -> None:
        """Begin with the faults of the configuration."""
        self._faults = Faults(parse_faults(config.faults or "")) if config.allow_faults else None
        self._end: asyncio.TimerHandle | None = None
        if self._faults:
            logger.warning("faults.changed", extra={"rules": config.faults, "by": "configuration"})

    def put_into(self, context: IContext, transport: str) -> None:
        """See make_faulty; does nothing where no faults are allowed."""
        if self._faults is not None:
            make_faulty(context, transport, self._faults)

    def wrap(self, wire: ServerStream, method: str) -> ServerStream:
        """Return what is to be seen of a call's stream: the stream itself where no faults are allowed."""
        return wire if self._faults is None else FaultyStream(wire, method, self._faults)

    def change(self, rules: str, seconds: float, by: Mapping[str, str]) -> None:
        """Put other rules in force for so many seconds; an empty text: none.

        Raises PermissionDeniedError where the worker allows none, and MalformedError. by: who has asked.
        """
        if self._faults is None:
            raise PermissionDeniedError("this worker allows no faults: start it with --allow-faults")
        try:
            parsed = parse_faults(rules)
        except ConfigError as error:
            raise MalformedError(str(error)) from error
        if parsed and not 0 < seconds <= _MOST_SECONDS:
            raise MalformedError(f"faults last over 0 to {_MOST_SECONDS:g} s, not {seconds:g}")
        logger.warning("faults.changed", extra={"rules": rules, "seconds": seconds, **by})
        if self._end is not None:
            self._end.cancel()
        self._faults.rules = parsed
        self._end = asyncio.get_running_loop().call_later(seconds, self._over) if parsed else None

    def _over(self) -> None:
        self._end = None
        if self._faults is not None:
            self._faults.rules = ()
        logger.warning("faults.over")

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; from any thread."""
        faults = Faults() if self._faults is None else self._faults
        yield gauge("fault_rules", "Rules of faults on purpose that are in force.", len(faults.rules))
        yield counters(
            "faults",
            "Messages with a fault on purpose, by what became of them.",
            "kind",
            [(kind, faults.counts[kind]) for kind in FATES],
        )
