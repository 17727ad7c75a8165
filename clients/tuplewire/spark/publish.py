"""Publishing an epoch of a sink: its messages are seen all at once, and once, however often it is tried."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence

from tuplewire.config import KIB, SessionSettings
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import (
    DrainingError,
    NotLocalError,
    NotReadyError,
    ResourceLimitError,
    SequenceGapError,
    UnknownTaskError,
    UnreachableError,
    WrongTopologyError,
)
from tuplewire.group import TaskGroup
from tuplewire.session.pieces import frame_pieces, wire_bytes
from tuplewire.session.retry import Backoff

_PIECE_BYTES = 512 * KIB
_MAX_CALL_SECONDS = 10.0


class Publisher:
    """Publishes at the workers that hold the tasks.

    address: of any worker of the topology, which tells the others'. timeout: seconds for which a worker that
    does not answer, or has no room, is tried again.
    """

    def __init__(self, address: str, topology: str, timeout: float) -> None:
        self._address = address
        self._topology = topology
        self._timeout = timeout

    def publish(self, sink: str, epoch: int, groups: Iterable[TaskGroup]) -> int:
        """Publish an epoch; return how many messages were not published before.

        Guarantee: at each worker all of its messages are seen at once; each task gets those of an epoch once,
        while its worker lives and the task does not move, whoever publishes the epoch again.

        Raises UnknownTaskError before anything is published; UnreachableError, DrainingError or
        ResourceLimitError once the timeout has passed: then some workers may have their part.
        """
        left = list(groups)
        deadline = time.monotonic() + self._timeout
        published = 0
        while left:
            try:
                for address, part in self._by_worker(left).items():
                    published += self._publish_at(address, sink, epoch, part)
                    done = {group.task for group in part}
                    left = [group for group in left if group.task not in done]
            except (NotLocalError, NotReadyError, DrainingError, UnreachableError):
                if time.monotonic() > deadline:  # else its tasks may be at another worker soon
                    raise
                time.sleep(random.random() * 0.2)  # noqa: S311 - no secret
        return published

    def _by_worker(self, groups: Iterable[TaskGroup]) -> dict[str, list[TaskGroup]]:
        with self._control(self._address) as control:
            assignment = control.assignment()
        if assignment is None:
            raise NotReadyError(f"the worker at {self._address} has no assignment yet")
        if assignment.topology != self._topology:
            raise WrongTopologyError(
                f"the worker at {self._address} serves topology {assignment.topology!r}, not "
                f"{self._topology!r}: set the option topology"
            )
        address_of = {task: worker.address for worker in assignment.workers for task in worker.tasks}
        found: dict[str, list[TaskGroup]] = {}
        for group in groups:
            if group.task not in address_of:
                raise UnknownTaskError(
                    f"task {group.task} is not in assignment version {assignment.version}: write to those "
                    "that it has, or assign this one to a worker"
                )
            found.setdefault(address_of[group.task], []).append(group)
        return found

    def _control(self, address: str) -> ControlClient:
        return ControlClient(address, min(self._timeout, _MAX_CALL_SECONDS))

    def _publish_at(self, address: str, sink: str, epoch: int, groups: Sequence[TaskGroup]) -> int:
        pieces = _pieces(groups)
        settings = SessionSettings()
        backoff = Backoff(settings.backoff_initial_seconds, settings.backoff_max_seconds, random.random)
        deadline = time.monotonic() + self._timeout
        number = published = 0
        with self._control(address) as control:
            while number < len(pieces):
                last = number == len(pieces) - 1
                try:
                    published = control.publish(
                        self._topology, sink, epoch, number, pieces[number], last=last
                    )
                    number += 1
                except SequenceGapError:
                    number = 0  # the worker is another one by now, and has no piece
                except ResourceLimitError:
                    if not last or time.monotonic() > deadline:
                        raise
                    time.sleep(backoff.next())
        return published


def _pieces(groups: Iterable[TaskGroup]) -> list[list[TaskGroup]]:
    """Return the messages in pieces of about a frame, in order."""
    pieces: list[list[TaskGroup]] = [[]]
    room = _PIECE_BYTES
    for group in groups:
        for part in frame_pieces(group, _PIECE_BYTES):
            if wire_bytes(part) > room and pieces[-1]:
                pieces.append([])
                room = _PIECE_BYTES
            pieces[-1].append(part)
            room -= wire_bytes(part)
    return pieces
