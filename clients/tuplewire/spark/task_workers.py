"""The workers of some tasks, and the messages of these tasks on them.

Used by the readers, range_reader.py and staging.py. Owns a client of each worker and the last assignment.
Not thread-safe. Design: docs/design/readers.md.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import ClassVar, TypeVar

from tuplewire.connection.control_client import ControlClient, ControlClients
from tuplewire.connection.task_owners import TaskOwners
from tuplewire.errors import DrainingError, NotReadyError, TuplewireError, UnreachableError, WrongWorkerError
from tuplewire.settings.addresses import Peer, resolve_addresses
from tuplewire.spark.entry_runs import EntryRuns
from tuplewire.spark.offsets import PreviousOwner, QueueState, QueueStates, TaskOffset
from tuplewire.spark.options import SinkOptions, SourceOptions
from tuplewire.values.task_ids import TaskRanges
from tuplewire.wire import control_pb2 as pb

_Answer = TypeVar("_Answer")

RETRYABLE_ERRORS = (UnreachableError, NotReadyError, DrainingError, WrongWorkerError)
"""Errors to retry: the worker may return soon, or its tasks may move."""
POLL_SECONDS = 0.05
_MIN_CALL_SECONDS = 2.0
"""The minimum timeout of a call: a worker needs a moment to answer, regardless of the user's timeout."""
NO_STATES: QueueStates = {}


class RetryDeadline:
    """Tolerates errors for some seconds, counted from the first one."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._failing_since: float | None = None

    def wait_or_raise(self, error: TuplewireError) -> None:
        """Wait a moment, or raise the error if the time has passed."""
        now = time.monotonic()
        self._failing_since = now if self._failing_since is None else self._failing_since
        if now - self._failing_since > self._seconds:
            raise error
        time.sleep(random.random() * 0.2)  # noqa: S311 - no secret

    def reset(self) -> None:
        """Reset the time, after a success."""
        self._failing_since = None


class TaskWorkers(ControlClients):
    """Finds the workers of tasks, and keeps a channel to each worker until it is closed.

    options: `address` is one worker of the topology, or several with commas. `timeout` is for a worker that
    does not answer, or that has no assignment or no free space yet.
    """

    CALL_SECONDS: ClassVar[float]
    """The maximum timeout of one call."""

    def __init__(self, options: SourceOptions | SinkOptions) -> None:
        super().__init__(lambda address: self.client(address, self._call_seconds))
        self._credentials = options.credentials()
        self._address, *others = resolve_addresses(options.address).split(",")
        self.last_address = self._address
        """The address of the worker that sent the last assignment."""
        self._topology = options.topology
        self._timeout = options.timeout
        self._call_seconds = min(max(options.timeout, _MIN_CALL_SECONDS), self.CALL_SECONDS)
        self.max_message_bytes = 0
        """The payload limit of the worker that sent the assignment."""
        self.owners = TaskOwners(options.topology, self._address, others)

    def client(self, address: str, timeout: float) -> ControlClient:
        """Return a client of one worker; the caller closes it. timeout: the limit of a call, in seconds."""
        return ControlClient(address, timeout, credentials=self._credentials, keepalive=True)

    def _with_retries(self, call: Callable[[], _Answer]) -> _Answer:
        """Return the result of a call; repeat it until the timeout while a worker is unavailable."""
        retry = RetryDeadline(self._timeout)
        while True:
            try:
                return call()
            except RETRYABLE_ERRORS as error:
                self._wait_or_raise(retry, error)

    def _wait_or_raise(self, retry: RetryDeadline, error: TuplewireError) -> None:
        self.owners.by_task = {}  # the tasks may have moved: request a new assignment
        retry.wait_or_raise(error)

    def _update_owners(self, tasks: Collection[int] = ()) -> None:
        """Find the workers of all tasks from a new assignment, unless these tasks are in the last one."""
        if self.owners.by_task and self.owners.by_task.keys() >= set(tasks):
            return
        problems: list[UnreachableError] = []
        for address in self.owners.addresses:
            try:
                assignment = self[address].get_assignment()
            except UnreachableError as error:
                problems.append(error)
                continue
            self.max_message_bytes = self[address].max_message_bytes
            self.last_address = address
            self.owners.apply(assignment, address)
            return
        problems[0].add_note("If no worker runs there, start one, or correct the option address.")
        raise problems[0]


class TaskPoller(TaskWorkers):
    """Polls the workers for the messages of the tasks that a query reads."""

    CALL_SECONDS = 5.0

    def __init__(
        self, options: SourceOptions, tasks: Collection[int] | None = None, others: Sequence[str] = ()
    ) -> None:
        """Poll no worker yet. others: the addresses of more workers, if the first one is unreachable.

        tasks: default: from the options. With TaskRanges: all tasks in them that are assigned, now and later.
        """
        super().__init__(options)
        self.owners.others += tuple(others)
        self._tasks = options.tasks if tasks is None else tasks

    def poll_all(self, seen: QueueStates = NO_STATES, wait: float = 0.0) -> dict[int, QueueState]:
        """Return the state of each task; first wait up to `wait` seconds for messages that are not in `seen`.

        Raises UnreachableError, NotReadyError or WrongWorkerError after the timeout, WrongTopologyError, or
        UnknownTaskError for a task that is not in the assignment.
        """
        tasks, found = self._tasks, self._with_retries(partial(self._poll, self._tasks, seen, wait))
        if not isinstance(tasks, TaskRanges) and (unknown := [task for task in tasks if task not in found]):
            raise self.owners.unknown_error(unknown)
        return found

    def poll_once(self) -> dict[int, QueueState]:
        """Poll all tasks once, with a fresh assignment, without retries; return their states."""
        self.owners.by_task = {}
        return self._poll(self._tasks)

    def poll_tasks(self, tasks: Collection[int]) -> dict[int, QueueState]:
        """Return the state of the given tasks that are in the assignment. Raises as poll_all()."""
        return self._with_retries(partial(self._poll, tasks))

    def _poll(
        self, wanted: Collection[int] | TaskRanges, seen: QueueStates = NO_STATES, wait: float = 0.0
    ) -> dict[int, QueueState]:
        self._update_owners(() if isinstance(wanted, TaskRanges) else wanted)
        if isinstance(wanted, TaskRanges):
            wanted = [task for task in self.owners.by_task if task in wanted]
            if not wanted:
                time.sleep(wait)
                self.owners.by_task = {}  # no worker is polled that could report a new assignment
        tasks_at = self.owners.group_tasks(wanted)
        polls = {peer: self._poll_request(peer, tasks, seen, wait) for peer, tasks in tasks_at.items()}
        if wait and len(polls) > 1:
            self._wait_for_any(polls, wait)
        found: dict[int, QueueState] = {}
        for peer, request in polls.items():
            answer = self[peer.address].poll(request)
            # With a newer assignment, or without one of the tasks, the answer may be incomplete.
            if answer.assignment_version > self.owners.version or len(answer.tasks) < len(request.tasks):
                raise NotReadyError(
                    f"the worker at {peer.address} lacks some of the tasks {tasks_at[peer]}: they are moving"
                )
            for each in answer.tasks:
                found[each.task] = QueueState(
                    *peer,
                    answer.worker_incarnation,
                    each.acknowledged_sequence,
                    each.last_sequence,
                    each.queued_bytes,
                    each.congested,
                    each.base_sequence,
                    each.consumer_id,
                )
        return {task: found[task] for task in wanted if task in found}

    def _poll_request(self, peer: Peer, tasks: list[int], seen: QueueStates, wait: float) -> pb.PollRequest:
        # Each worker has its own numbering: a sequence seen at another worker means nothing here.
        known = {key: seen[key].tail for key in seen.keys() & tasks if seen[key].worker_id == peer.worker_id}
        polled = (pb.PolledTask(task=task, seen_sequence=known.get(task, 0)) for task in tasks)
        request = pb.PollRequest(topology=self._topology, expected_worker_id=peer.worker_id, tasks=polled)
        request.wait_millis = int(wait * 1000)
        return request

    def _wait_for_any(self, polls: Mapping[Peer, pb.PollRequest], wait: float) -> None:
        """Wait until one of several workers has new messages; afterwards, poll all without a wait."""
        changed = threading.Event()
        calls = [self[peer.address].poll_future(request) for peer, request in polls.items()]
        for call in calls:
            call.add_done_callback(lambda _: changed.set())
        changed.wait(wait)
        for call, request in zip(calls, polls.values(), strict=True):
            call.cancel()
            request.wait_millis = 0

    def fetch_runs(self, last: Mapping[int, int], states: QueueStates) -> dict[int, EntryRuns]:
        """Return the entry sequences of messages, for tasks that have not moved since the poll of `states`.

        last: the last sequence for each task; 0: all. Tasks of a worker that does not answer are omitted, as
        they may have moved.
        """
        found: dict[int, EntryRuns] = {}
        for peer, tasks in self.owners.group_tasks(last).items():
            polled = (pb.PolledTask(task=task, entries_to_sequence=last[task]) for task in tasks)
            request = pb.PollRequest(topology=self._topology, expected_worker_id=peer.worker_id, tasks=polled)
            try:
                answer = self[peer.address].poll(request)
            except RETRYABLE_ERRORS:
                continue  # the caller's next poll repeats this, up to the timeout
            for held in answer.tasks:
                each = states[held.task]
                if (answer.worker_incarnation, held.base_sequence) == (each.worker, each.start):
                    runs = held.entries
                    numbered = zip(runs.run_lengths, runs.entry_workers, runs.entry_sequences, strict=True)
                    found[held.task] = EntryRuns(runs.first_sequence, held.base_sequence, tuple(numbered))
        return found

    def acknowledge(self, offsets: Mapping[int, TaskOffset]) -> None:
        """Release the messages up to these offsets on the workers, permanently.

        Offsets on workers that no longer own the task are skipped. Raises SupersededError if a task has a
        consumer, and the errors of poll_tasks().
        """
        states = self.poll_tasks(offsets.keys())
        behind = [
            task
            for task, each in states.items()
            if offsets[task].worker == each.worker and each.acknowledged < offsets[task].sequence
        ]
        for peer, tasks in self.owners.group_tasks(behind).items():
            ends = {task: offsets[task].sequence for task in tasks}
            self[peer.address].acknowledge(self._topology, peer.worker_id, states[tasks[0]].worker, ends)

    def wait_for_previous_owner(self, task: int, worker: int, address: str) -> PreviousOwner:
        """Return the final state of a task's previous owner. worker: the owner's incarnation.

        Wait while it forwards messages or is unreachable, for at most the timeout.
        """
        deadline = time.monotonic() + self._timeout
        while (found := self._poll_previous_owner(task, worker, address)) is None:
            if time.monotonic() > deadline:
                return PreviousOwner(exited_uncleanly=True)
            time.sleep(POLL_SECONDS)
        return found

    def _poll_previous_owner(self, task: int, worker: int, address: str) -> PreviousOwner | None:
        """Return the final state; None if it still has to forward messages, or is not known yet."""
        replaced = unreachable = False
        polled = [pb.PolledTask(task=task)]
        request = pb.PollRequest(topology=self._topology, tasks=polled, worker_incarnations=[worker])
        for candidate in filter(None, dict.fromkeys((address, *self.owners.others, self._address))):
            try:
                answer = self[candidate].poll(request)
            except UnreachableError:
                unreachable = unreachable or candidate in self.owners.by_address
                continue
            if answer.worker_incarnation == worker:
                return None if task in answer.leaving_tasks else PreviousOwner()
            for each in answer.departed_workers:
                return PreviousOwner(each.dropped_messages)
            replaced = replaced or candidate == address
        # The worker was lost if another incarnation answers at its address. But while a present worker is
        # unreachable, that one may know about a clean shutdown.
        return PreviousOwner(exited_uncleanly=True) if replaced and not unreachable else None
