"""What a process that runs executors and the one that started it tell each other, over a socket pair.

A message is a kind and values, in the form of a tuple's values (MessagePack), which runs nothing when it is
read: the two may be of different users.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from multiprocessing.connection import Connection
from typing import Any

from tuplewire.errors import MalformedError, UnreachableError
from tuplewire.topology.packing import pack_values
from tuplewire.topology.receive_queue import QueueStatistics
from tuplewire.topology.statistics import Counts, ExecutorStatistics, Latency, StreamId
from tuplewire.topology.termination import Failure, ProcessReport
from tuplewire.topology.unpacking import FAULTS, read_value

_MOST_BYTES = 256 * 1024 * 1024


class Channel:
    """One end; used from one thread at a time. Raises UnreachableError once the other end is gone."""

    def __init__(self, descriptor: int) -> None:
        self._connection = Connection(descriptor)

    def send(self, kind: str, *values: Any) -> None:
        """Send a message."""
        try:
            self._connection.send_bytes(pack_values([kind, *values]))
        except OSError as error:
            raise UnreachableError("the process at the other end of the channel is gone") from error

    def receive(self, timeout: float | None) -> tuple[str, list[Any]] | None:
        """Return the next message as its kind and values; None when there is none in so many seconds.

        Raises MalformedError for what is no message.
        """
        try:
            if not self._connection.poll(timeout):
                return None
            payload = self._connection.recv_bytes(_MOST_BYTES)
        except (EOFError, OSError) as error:
            raise UnreachableError("the process at the other end of the channel is gone") from error
        try:
            (kind, *values), _ = read_value(payload, 0)
        except (*FAULTS, TypeError) as error:
            raise MalformedError(f"{len(payload)} bytes on the channel are no message: {error}") from error
        if not isinstance(kind, str):
            raise MalformedError(f"a message on the channel is of the kind {kind!r}")
        return kind, values

    def close(self) -> None:
        """End it; does nothing the second time."""
        self._connection.close()


def channel_pair() -> tuple[Channel, socket.socket]:
    """Return one end, and the socket of the other, for a process to inherit."""
    ours, theirs = socket.socketpair()
    return Channel(ours.detach()), theirs


def from_report(report: ProcessReport) -> list[Any]:
    """Return a report as values."""
    failure = None if report.failure is None else [report.failure.summary, report.failure.traceback]
    return [report.at_rest, report.sent, report.taken, failure]


def to_report(values: Sequence[Any]) -> ProcessReport:
    """Return the report that from_report was given."""
    at_rest, sent, taken, failure = values
    return ProcessReport(at_rest, sent, taken, None if failure is None else Failure(*failure))


def from_statistics(statistics: ExecutorStatistics) -> list[Any]:
    """Return a snapshot of an executor as values."""
    counts = statistics.counts
    return [
        statistics.component,
        [statistics.tasks.start, statistics.tasks.stop],
        [dict(counts.emitted_by), dict(counts.transferred_by)],
        [_from_sources(each) for each in (counts.executed_by, counts.acked_by, counts.failed_by)],
        [list(astuple(each)) for each in (counts.execute, counts.process, counts.complete)],
        [counts.errors, counts.sending_seconds],
        list(astuple(statistics.queue)),
        statistics.pending,
    ]


def to_statistics(values: Sequence[Any]) -> ExecutorStatistics:
    """Return the snapshot that from_statistics was given."""
    component, tasks, (emitted, transferred), sources, latencies, others, queue, pending = values
    executed, acked, failed = map(_to_sources, sources)
    execute, process, complete = (Latency(*each) for each in latencies)
    counts = Counts(
        emitted_by=emitted,
        transferred_by=transferred,
        executed_by=executed,
        acked_by=acked,
        failed_by=failed,
        errors=others[0],
        execute=execute,
        process=process,
        complete=complete,
        sending_seconds=others[1],
    )
    return ExecutorStatistics(component, range(*tasks), counts, QueueStatistics(*queue), pending)


def _from_sources(counts: Mapping[StreamId, int]) -> list[list[Any]]:
    return [[component, stream, count] for (component, stream), count in counts.items()]


def _to_sources(values: Sequence[Sequence[Any]]) -> dict[StreamId, int]:
    return {(component, stream): count for component, stream, count in values}
