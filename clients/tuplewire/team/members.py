"""One member's connection to its team: it forms the team, exchanges values, and finds lost members.

Used by team.py. Owns a client, the subscription to the member's own task, and the state of the other members.
All I/O happens in the caller's thread, during its calls. Not thread-safe. Design: docs/design/teams.md.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tuplewire import errors
from tuplewire.client import Client
from tuplewire.connection.control_client import ControlClient
from tuplewire.connection.control_clients import ControlClients
from tuplewire.connection.task_owners import TaskOwners
from tuplewire.team.forming import Answers, Forming
from tuplewire.team.matching import (
    PIECE_BYTES,
    Call,
    Description,
    Matching,
    Message,
    Parcel,
    pieces_of,
    unpack,
)
from tuplewire.text.events import event_logger
from tuplewire.values.batch import TaskMessageBatch
from tuplewire.wire.control_pb2 import HeldTask, PolledTask, PollRequest, PollResponse

logger = event_logger(__name__)

_TICK_SECONDS = 0.1
"""The maximum wait for a message before times are checked."""
_JOIN_SECONDS = 0.5
_QUIET_SECONDS = 1.0
"""A member that has waited for this time polls the workers of the members that it waits for."""
_POLL_SECONDS = 2.0
_POLL_TIMEOUT = 1.0
_GONE_SECONDS = 5.0
"""A member without a consumer for this time is lost. A consumer reconnects within two seconds."""
_LOG_SECONDS = 30.0
_LEAVE_SECONDS = 1.0
"""The maximum time that a leaving member waits until all others leave."""
_ABORT_SECONDS = 10.0
"""The maximum time that a leaving member with an error waits for acknowledgements."""
_MAX_TEXT = 2000
_LARGE_BYTES = 32 * 1024
_MOST_AT_ONCE = 32
"""Messages are sent in batches that end with a large message, or after this number of small ones."""
_MOST_NAMED = 10
"""The maximum number of ranks in the text of an error."""
_MOST_ASKED = 3
"""The maximum number of workers to request the assignment from at each poll."""


class Step(NamedTuple):
    """A step of a call: the values to send, by rank, and the ranks to receive a value from."""

    outgoing: Mapping[int, Parcel]
    sources: Collection[int]


Steps = Generator[Step, dict[int, Parcel], Any]
"""A call: it yields its steps, gets the received values by rank, and returns the result."""


@dataclass
class _Member:
    """The known state of another member. Times are monotonic, in seconds."""

    task: int
    worker_id: str = "an unknown worker"
    heard: float | None = None
    consumer: str | None = None
    """The id of its consumer; empty: it has none; None: not known."""
    gone_since: float = math.inf
    unread: int = 0

    def look(self, held: HeldTask | None) -> None:
        """Apply the state of the task at its worker; None: no worker has it."""
        self.consumer = None if held is None else held.consumer
        self.unread = 0 if held is None else held.last_sequence - held.acknowledged_sequence
        self.gone_since = min(self.gone_since, time.monotonic()) if self.consumer == "" else math.inf

    def facts(self, last: Description | None) -> str:
        """Describe the member: `(task 102, worker-1): last message 61 s ago in barrier #11, subscribed`."""
        now, call = time.monotonic(), "" if last is None else f" in {last}"
        heard = "no message yet" if self.heard is None else f"last message {now - self.heard:.0f} s ago{call}"
        if self.consumer is None:
            state = "not found at a worker"
        else:
            state = "subscribed" if self.consumer else f"no subscriber for {now - self.gone_since:.0f} s"
            state += f", {self.unread} message{'' if self.unread == 1 else 's'} unread"
        return f"(task {self.task}, {self.worker_id}): {heard}, {state}"


class Members:
    """The members of a team, as one of them sees the others."""

    def __init__(
        self, tasks: Sequence[int], rank: int, address: str | None, timeout: float, client: Mapping[str, Any]
    ) -> None:
        """Connect, and return once all members have joined. client: arguments of Client."""
        self.rank, self.tasks = rank, tuple(tasks)
        self.stale = 0
        """The number of dropped messages of other teams."""
        own_id = secrets.randbits(64)
        self.forming = Forming(rank, len(tasks), own_id)
        self._matching = Matching()
        self._others = {other: _Member(task) for other, task in enumerate(tasks) if other != rank}
        self._left: set[int] = set()
        # The id of a task's consumer shows whether the member that formed the team still has the task.
        client = {**client, "client_id": _client_id(tasks[rank], own_id), "source": tasks[rank]}
        self._client = Client(address, overflow="block", **client)
        credentials, topology = client.get("credentials"), self._client.topology
        self._controls = ControlClients(lambda at: ControlClient(at, _POLL_TIMEOUT, credentials=credentials))
        self._owners = TaskOwners(topology, self._client.address)
        self._processed = client.get("ack_mode") == "processed"
        self._subscription = self._client.recv(tasks[rank], timeout=_TICK_SECONDS)
        self._next_poll = 0.0
        try:
            self._lost = self._possibly_lost()
            self._begin("Team()", timeout, self.forming.missing)
            next_join = 0.0
            while not self.forming.started:
                if time.monotonic() >= next_join:
                    self._send_all(self.forming.repeat())
                    next_join = time.monotonic() + _JOIN_SECONDS
                self._wait()
        except BaseException:
            self._end(0)
            raise

    def _send_all(self, messages: Answers) -> None:
        for rank, message in messages:
            self._client.send(self.tasks[rank], message.pack())

    # --- calls -----------------------------------------------------------------------------------

    def run(self, call: Description, steps: Steps, timeout: float) -> Any:
        """Do the steps of a call; return its result. Raises TeamError: the team is broken then."""
        values, number = None, 0
        self._begin(call, timeout, list)
        try:
            while True:
                step = next(steps) if values is None else steps.send(values)
                values = self._do(call, number, *step)
                number += 1
        except StopIteration as end:
            return end.value

    def _do(
        self, call: Description, step: int, outgoing: Mapping[int, Parcel], sources: Collection[int]
    ) -> dict[int, Parcel]:
        direct, matching = call.call == Call.SEND, self._matching
        if not direct:
            matching.begin(call, step, sources)
        head = Message(self.forming.team, call.number, self.rank, call.call, step=step)
        unsent = {rank: deque(range(pieces_of(len(each.data)))) for rank, each in outgoing.items()}
        values: dict[int, Parcel] = {}
        missing = set(sources)
        self._waits_for = lambda: sorted(missing.union(unsent))
        while True:
            for rank in list(missing):
                if (value := matching.take((rank, direct), call.number, step)) is not None:
                    values[rank] = value
                    missing.remove(rank)
            for rank in self._left.intersection(missing.union(unsent)):
                raise errors.TeamMismatchError(
                    f"{call}: rank {rank} has left the team: {self._facts([rank])}"
                )
            self._send_pieces(head, outgoing, unsent)
            self._confirm()
            if not missing and not unsent:
                return values
            self._wait()

    def _send_pieces(
        self, head: Message, outgoing: Mapping[int, Parcel], unsent: dict[int, deque[int]]
    ) -> None:
        """Send the pieces that the window accepts, several small ones at once."""
        batch: list[tuple[int, bytes]] = []
        for rank, pieces in list(unsent.items()):
            stream = rank, head.call == Call.SEND
            while pieces and self._matching.free(stream):
                batch.append((self.tasks[rank], _piece(head, outgoing[rank], pieces.popleft())))
                self._matching.sent[stream] += 1
                if len(batch[-1][1]) >= _LARGE_BYTES or len(batch) >= _MOST_AT_ONCE:
                    self._send(batch)
            if not pieces:
                del unsent[rank]
        self._send(batch)

    def _send(self, batch: list[tuple[int, bytes]]) -> None:
        """Send messages to tasks, and empty the list."""
        while batch and not self._client.try_send(TaskMessageBatch.from_columns(*zip(*batch, strict=True))):
            self._wait()  # the buffer is full: read, so that the others can send
        batch.clear()

    def _confirm(self) -> None:
        for (rank, direct), taken in self._matching.confirmations():
            note = Message(self.forming.team, 0, self.rank, Call.CONFIRM, dtype=int(direct), size=taken)
            if self._client.try_send(self.tasks[rank], note.pack()):  # otherwise, after the next message
                self._matching.reported[rank, direct] = taken

    # --- receiving -------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Process the messages that arrive within a short time."""
        try:
            batch = next(self._subscription)
        except (errors.WaitTimeoutError, errors.UnreachableError):
            return
        except errors.SupersededError as error:
            text = f"another process has taken rank {self.rank} over: {error}"
            raise errors.TeamChangedError(text) from error
        for group in batch.groups:
            for message in map(unpack, group.payloads()):
                if message is None or message.rank not in self._others:
                    self.stale += 1
                else:
                    self._add(message)
        self._subscription.acknowledge()

    def _add(self, message: Message) -> None:
        rank = message.rank
        if message.call <= Call.START:
            if not self.forming.is_member(message):  # of a process that has left, or a new one: poll which
                self.stale += 1
                self._next_poll = 0.0
                return
            self._send_all(self.forming.add(message))
        elif message.team != self.forming.team:
            self.stale += 1
            return
        elif message.call == Call.CONFIRM:
            stream = rank, bool(message.dtype)
            self._matching.confirmed[stream] = max(self._matching.confirmed[stream], message.size)
        elif message.call == Call.LEAVE:
            self._left.add(rank)
        elif message.call == Call.ABORT:
            self._left.add(rank)
            text = bytes(message.body).decode(errors="replace")
            changed = text.startswith(f"{errors.TeamChangedError.__name__}:")
            kind = errors.TeamChangedError if changed else errors.TeamAbortedError
            raise kind(f"rank {rank} has left the team: {text}")
        else:
            self._matching.add(message)
        self._others[rank].heard = time.monotonic()

    # --- waiting ---------------------------------------------------------------------------------

    def _begin(self, call: object, timeout: float, waits_for: Callable[[], list[int]]) -> None:
        """Begin a call, for the texts of errors. waits_for: returns the ranks that the call waits for."""
        self._call, self._timeout, self._waits_for = call, timeout, waits_for
        self._began = self._logged = time.monotonic()

    def _wait(self) -> None:
        """Process messages. Raise an error if a member is lost or the timeout has passed."""
        self._receive()
        now, ranks = time.monotonic(), self._waits_for()
        expired = ranks and now - self._began >= self._timeout
        if expired or (now >= self._next_poll and now - self._began >= _QUIET_SECONDS):
            self._poll(ranks)
        if expired:
            names = ", ".join(map(str, ranks[:_MOST_NAMED]))
            raise errors.TeamTimeoutError(
                f"{self._call}: no message from {'rank' if len(ranks) == 1 else 'ranks'} {names} of "
                f"{len(self.tasks)} for {self._timeout:g} s. {self._facts(ranks)}"
            )
        if now - self._logged >= _LOG_SECONDS:
            self._logged = now
            logger.warning("team.waiting", extra={"call": str(self._call), "ranks": self._facts(ranks)})

    def _poll(self, ranks: Iterable[int]) -> None:
        """Look at the consumers of members. Raise an error if a member, or a message to one, is lost."""
        self._next_poll = time.monotonic() + _POLL_SECONDS
        self._look([self._others[rank] for rank in ranks])
        if not self.forming.started:  # the ids of the consumers are not known yet
            return
        for rank in ranks:
            member, expected = self._others[rank], _client_id(self.tasks[rank], self.forming.ids[rank])
            if member.consumer not in ("", None, expected):
                raise errors.TeamChangedError(f"{self._call}: {member.consumer} has taken rank {rank} over")
            if time.monotonic() - member.gone_since >= _GONE_SECONDS:
                raise errors.RankLostError(f"{self._call}: a process has ended: {self._facts([rank])}")
        before, self._lost = self._lost, self._possibly_lost() or self._lost
        by = [each for each, count in self._lost.items() if count > before.get(each, 0)]
        if by or (self._client.possibly_lost and not self._processed):
            raise errors.RankLostError(
                f"{self._call}: {' and '.join(by) or 'the worker'} has failed, and messages of rank {self.rank} "
                'may be lost; ack_mode="processed" prevents this'
            )

    def _look(self, members: Sequence[_Member]) -> None:
        """Find the consumers of members at the workers of their tasks."""
        if not all(each.task in self._owners.of for each in members):
            self._find_owners()
        places = self._owners.by_worker(each.task for each in members)
        tasks = {address: [PolledTask(task=each) for each in tasks] for (address, _), tasks in places.items()}
        topology = self._client.topology
        answers = self._controls.each(
            tasks, lambda at: at.poll(PollRequest(topology=topology, tasks=tasks[at.address]))
        )
        polled = [answer for answer in answers.values() if isinstance(answer, PollResponse)]
        held = {each.task: each for answer in polled for each in answer.tasks}
        for each in members:
            each.worker_id = self._owners.of.get(each.task, ("", each.worker_id))[1]
            each.look(held.get(each.task))
        if len(held) < len(members):
            self._owners.of = {}  # a task moves, or its worker has failed: request the assignment again

    def _find_owners(self) -> None:
        for address in self._owners.addresses[:_MOST_ASKED]:
            with contextlib.suppress(errors.TuplewireError):
                self._owners.replace(self._controls[address].assignment(), address)
                return

    def _possibly_lost(self) -> dict[str, int]:
        """Return the number of messages that the own worker has possibly lost, by worker."""
        if not self._processed:
            with contextlib.suppress(errors.TuplewireError):
                return dict(self._controls[self._client.address].status(max_tasks=0).possibly_lost)
        return {}

    def _facts(self, ranks: Iterable[int]) -> str:
        named = list(ranks)[:_MOST_NAMED]
        return ". ".join(f"rank {r} {self._others[r].facts(self._matching.last.get(r))}" for r in named)

    # --- the end ---------------------------------------------------------------------------------

    def close(self, error: BaseException | None) -> None:
        """Tell the others, and end the connections."""
        call, body = Call.LEAVE, b""
        if error is not None:
            call, body = Call.ABORT, f"{type(error).__name__}: {error}"[:_MAX_TEXT].encode(errors="replace")
        note = Message(self.forming.team, 0, self.rank, call, body=body)
        deadline = time.monotonic() + (_LEAVE_SECONDS if error is None else 0)
        try:
            self._send_all([(rank, note) for rank in self._others.keys() - self._left])
            # The last messages of the others would stay in the queue of this task.
            while self._others.keys() - self._left and time.monotonic() < deadline:
                self._receive()
        except errors.TuplewireError as problem:
            logger.info("team.left", extra={"reason": str(problem)})
        finally:
            self._end(None if error is None else _ABORT_SECONDS)

    def _end(self, timeout: float | None) -> None:
        try:
            self._subscription.close()
            self._client.close(timeout)
        except errors.FlushTimeoutError as error:  # its messages arrive, or another rank raises an error
            logger.warning("team.unacknowledged", extra={"reason": str(error)})
        finally:
            self._controls.close()


def _piece(head: Message, parcel: Parcel, piece: int) -> bytes:
    data, dtype, kind, shape = parcel
    body = data[piece * PIECE_BYTES : (piece + 1) * PIECE_BYTES]
    return head._replace(dtype=dtype, piece=piece, size=len(data), kind=kind, shape=shape, body=body).pack()


def _client_id(task: int, member_id: int) -> str:
    return f"team-{task}-{member_id:016x}"
