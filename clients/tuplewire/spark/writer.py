"""Batch and stream writers of the format `tuplewire`.

Two ways. Sent as it is computed: fast, of any size, and at-least-once, since a task that Spark runs again
sends again. Or gathered: each attempt hands its messages to the driver with its commit message, Spark chooses
one attempt of each partition, and the driver publishes those, as an epoch that workers take once.
"""

from __future__ import annotations

import dataclasses
import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tuplewire.client import Client
from tuplewire.config import MIB
from tuplewire.connection.control_client import ControlClient
from tuplewire.connection.grpc_channel import resolve_address
from tuplewire.errors import WrongTopologyError
from tuplewire.group import TaskGroup
from tuplewire.message import TaskMessageBatch
from tuplewire.spark.options import SinkOptions
from tuplewire.spark.publish import Publisher
from tuplewire.spark.routing import RowRouter
from tuplewire.spark.shipped import Shipped

logger = logging.getLogger(__name__)

_PIECE_BYTES = 8 * MIB
_QUERY_ID = "sql.streaming.queryId"
"""The property by which Spark tells its tasks; it is kept in the checkpoint."""


@dataclass
class Part(WriterCommitMessage):
    """What one attempt of one partition has to say: its messages, or (sent already) nothing but their number.

    sink: names the streaming query, also after a restart, or the batch write. attempt: Spark's taskAttemptId;
    attempt *numbers* repeat.
    """

    sink: str
    partition: int
    attempt: int
    messages: int
    groups: Sequence[TaskGroup]


class TuplewireBatchWriter(Shipped, DataSourceArrowWriter):
    """Sends the rows of a DataFrame.

    Guarantee: when the write has succeeded, the worker has acknowledged every row's message. With atomic,
    exactly one attempt of each partition is seen, and nothing before all of them are computed. Without it a
    task that Spark runs again sends again: at least once.
    """

    def __init__(self, options: SinkOptions) -> None:
        if options.atomic:
            options = dataclasses.replace(options, address=resolve_address(options.address))
        self._options = options
        self._write_id = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Part:
        """Send one partition, or gather it; in a Spark task."""
        if self._options.atomic:
            return _gathered(self._options, f"spark-{self._write_id}", iterator)
        return self._sent(iterator)

    def _sent(self, batches: Iterable[pa.RecordBatch]) -> Part:
        options = self._options
        partition, attempt = _attempt(_context())
        _check_worker(options)
        router = RowRouter(options, partition)
        count = 0
        # A newer attempt fences an older one off that still runs.
        client = Client(
            options.address,
            topology=options.topology,
            client_id=f"spark-{self._write_id}-{partition}",
            incarnation=attempt + 1,
        )
        try:
            for batch in batches:
                _send(client, router.groups(batch), options.timeout)
                count += batch.num_rows
            client.flush(options.timeout)
        except BaseException:
            client.close(timeout=0)  # what was not sent yet is the next attempt's
            raise
        client.close()
        return Part(self._write_id, partition, attempt, count, ())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what was gathered; in the driver, once all partitions are there."""
        _publish(self._options, 0, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish nothing."""


class TuplewireStreamWriter(Shipped, DataSourceStreamArrowWriter):
    """Publishes the rows of each micro-batch, once it is computed.

    Guarantee: of each partition and micro-batch exactly one attempt is seen, whatever fails, however many
    attempts Spark makes, and also when the driver dies while it publishes: it then publishes the micro-batch
    again, and the workers take what they lack of it. This holds while a task's worker lives and the task does
    not move, and where a row goes to the same task when it is computed again.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = dataclasses.replace(options, address=resolve_address(options.address))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Part:
        """Gather one partition; in a Spark task."""
        query = _context().getLocalProperty(_QUERY_ID)
        assert query is not None, "a streaming query's tasks know its id"  # noqa: S101
        return _gathered(self._options, f"spark-{query}", iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the micro-batch; in the driver."""
        _publish(self._options, batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish nothing."""


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "write() runs in a Spark task"  # noqa: S101
    return context


def _attempt(context: TaskContext) -> tuple[int, int]:
    return context.partitionId(), context.taskAttemptId()


def _check_worker(options: SinkOptions) -> None:
    """Raise UnreachableError or WrongTopologyError at once, and not once a queue is full or a flush late."""
    with ControlClient(options.address, timeout=options.timeout) as control:
        control.wait_ready(options.timeout)
        found = control.status().topology
    if found != options.topology:
        raise WrongTopologyError(
            f"the worker at {control.address} serves topology {found!r}, not {options.topology!r}: set the "
            "option topology"
        )


def _gathered(options: SinkOptions, sink: str, batches: Iterable[pa.RecordBatch]) -> Part:
    partition, attempt = _attempt(_context())
    router = RowRouter(options, partition)
    groups = [group for batch in batches for group in router.groups(batch)]
    return Part(sink, partition, attempt, sum(map(len, groups)), groups)


def _publish(options: SinkOptions, epoch: int, messages: Iterable[WriterCommitMessage | None]) -> None:
    parts = sorted((part for part in messages if isinstance(part, Part)), key=lambda part: part.partition)
    groups = [group for part in parts for group in part.groups]
    if groups:
        publisher = Publisher(resolve_address(options.address), options.topology, options.timeout)
        published = publisher.publish(parts[0].sink, epoch, groups)
        attempts = [part.attempt for part in parts]
        logger.info(
            "spark.published",
            extra={"sink": parts[0].sink, "epoch": epoch, "messages": published, "attempts": attempts},
        )


def _send(client: Client, groups: Iterable[TaskGroup], timeout: float) -> None:
    for group in groups:
        for piece in group.split(_PIECE_BYTES) if len(group.data) > _PIECE_BYTES else (group,):
            client.send(TaskMessageBatch.from_groups([piece]), timeout=timeout)
