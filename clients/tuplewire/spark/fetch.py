"""Reading a range of a task's messages in a Spark task, and acknowledging ranges in the driver."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator, Mapping

import pyarrow as pa

from tuplewire.config import SessionSettings
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import (
    DrainingError,
    NotLocalError,
    NotReadyError,
    SequenceGapError,
    SupersededError,
    UnknownTaskError,
    UnreachableError,
)
from tuplewire.session.retry import Backoff
from tuplewire.spark.offsets import DataLossError, Held, Range, TaskOffset
from tuplewire.spark.options import SourceOptions
from tuplewire.spark.recv_stream import RecvStream, Stretch, within
from tuplewire.spark.schema import read_batch

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.1


class RangeReader:
    """Iterates over the messages of a range, as Arrow batches, through broken connections.

    Any number of attempts may read the same range; the worker serves one at a time, the newest first, and
    the others wait until that one has finished or is gone.
    """

    def __init__(self, wanted: Range, options: SourceOptions) -> None:
        self._wanted = wanted
        self._options = options
        self._position = wanted.start
        settings = SessionSettings()
        self._settings = settings
        self._backoff = Backoff(settings.backoff_initial_seconds, settings.backoff_max_seconds, random.random)
        self._failing_since: float | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages.

        Raises DataLossError when they are gone and failOnDataLoss says so, UnreachableError when the worker
        is, SupersededError when another consumer has the task; the latter two once the timeout has passed.
        """
        wanted = self._wanted
        superseded = False
        while self._position < wanted.end:
            try:
                if superseded:
                    self._wait_for_twin()
                    superseded = False
                yield from self._stream()
            except SequenceGapError:
                superseded = True
            except (UnreachableError, SupersededError, NotReadyError, DrainingError):
                now = time.monotonic()
                self._failing_since = self._failing_since or now
                if now - self._failing_since > self._options.timeout:
                    raise
                time.sleep(self._backoff.next())
            except (NotLocalError, UnknownTaskError) as error:
                self._lost(wanted.end, f"has left the worker at {wanted.address}: {error}")

    def _succeeded(self) -> None:
        self._backoff.succeeded()
        self._failing_since = None

    def _stream(self) -> Iterator[pa.RecordBatch]:
        wanted = self._wanted
        stretch = Stretch(wanted.start, self._position, wanted.end)
        with RecvStream(
            wanted.address, self._options.topology, wanted.worker, {wanted.task: stretch}, self._settings
        ) as stream:
            if stream.worker != wanted.worker:
                self._lost(wanted.end, f"was at a worker at {wanted.address} that has been restarted")
            elif stream.starts[wanted.task] > self._position:
                self._lost(stream.starts[wanted.task], "has another consumer, which has acknowledged them")
            if self._position >= wanted.end:
                return
            for frame in stream.frames():
                deliveries = within(frame, self._position, wanted.end)
                self._succeeded()
                if deliveries:
                    self._position = deliveries[-1].first_sequence + len(deliveries[-1].group) - 1
                    yield read_batch(deliveries, wanted.timestamp_millis)

    def _lost(self, sequence: int, why: str) -> None:
        """Give up what comes up to a sequence, where that is allowed."""
        last = min(sequence, self._wanted.end)
        text = f"messages {self._position + 1} to {last} of task {self._wanted.task} are gone: the task {why}"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}. Set failOnDataLoss=false to go on without them")
        logger.warning("spark.data_lost", extra={"reason": text})
        self._position = last

    def _wait_for_twin(self) -> None:
        """Wait until the attempt that has superseded this one has finished; Spark may end this one first."""
        with ControlClient(self._wanted.address) as control:
            while any(each.subscribed for each in control.status().tasks if each.task == self._wanted.task):
                time.sleep(_POLL_SECONDS)
        self._succeeded()


def acknowledge(
    offsets: Mapping[int, TaskOffset], held: Mapping[int, Held], topology: str, settings: SessionSettings
) -> None:
    """Tell the workers that a query is done with the messages up to these offsets, for good.

    A offset at a worker that is gone is passed over. What was read by this module needs no reading again;
    what the worker has given to others meanwhile is fetched and thrown away.
    """
    by_worker: dict[tuple[str, int], dict[int, Stretch]] = {}
    for task, each in held.items():
        offset = offsets[task]
        if offset.worker == each.worker and each.acknowledged < offset.sequence:
            sequence = offset.sequence
            stretches = by_worker.setdefault((each.address, each.worker), {})
            stretches[task] = Stretch(sequence, sequence, sequence)
    for (address, worker), stretches in by_worker.items():
        with RecvStream(address, topology, worker, stretches, settings) as stream:
            if stream.worker == worker:
                for _ in stream.frames():
                    pass
                stream.acknowledge()
