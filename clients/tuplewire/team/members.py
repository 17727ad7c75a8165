"""One member's connection to its team: it forms the team, exchanges values, and finds lost members.

Used by team.py. Owns a client, the subscription to the member's own task, and the state of the other members.
It processes messages in the caller's thread, during its calls. Not thread-safe. Design: docs/design/teams.md.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuplewire import errors
from tuplewire.client import Client
from tuplewire.connection.loop import messaging_thread
from tuplewire.connection.task_states import NO_CONSUMER_SECONDS, POLL_SECONDS, TaskStates
from tuplewire.team.protocol import PIECE_BYTES, WINDOW, CallMatcher, Kind, Message, TeamFormation, unpack
from tuplewire.text.events import event_logger
from tuplewire.values.message import TaskMessage

logger = event_logger(__name__)

Data = bytes | bytearray | memoryview
_TICK_SECONDS = 0.1
"""The maximum wait for a message before times are checked."""
_JOIN_INTERVAL_SECONDS = 0.5
_POLL_AFTER_SECONDS = 1.0
"""A member that has waited for this time polls the workers of the members that it waits for."""
_LOG_INTERVAL_SECONDS = 30.0
_MAX_OVERDUE_SECONDS = 1.0
"""The maximum time after a timeout for a poll, and for reading the messages that have arrived."""
_LEAVE_SECONDS = 3.0
"""The maximum time that a leaving member waits until all others leave; with an error, a third of it.

With an error, it then waits at most this time for acknowledgements.
"""


@dataclass
class _OtherMember:
    """The known state of another member. Times are monotonic, in seconds."""

    task: int
    last_message_at: float = 0.0
    """The time of its last message; 0: there is none."""
    last_call: str = "Team()"
    """The last call that it has sent a value in; Team() before the first one."""
    left_at: float = 0.0
    """0 until it leaves; then the start of the read before the one that found its LEAVE or ABORT."""

    def describe(self, states: TaskStates) -> str:
        """Describe the member: `(task 102): last message 61 s ago in barrier #11, subscribed`."""
        ago = f"last message {time.monotonic() - self.last_message_at:.0f} s ago in {self.last_call}"
        return f"(task {self.task}): {ago if self.last_message_at else 'no message yet'}, {states[self.task]}"


class TeamConnection:
    """A member's connection to its team: what it knows about the others, and the exchange with them."""

    def __init__(self, tasks: Sequence[int], rank: int, timeout: float | None, **client: Any) -> None:
        """Connect, and return once all members have joined. client: arguments of Client."""
        self.stale_messages = 0
        """The number of dropped messages of other teams."""
        own_id = secrets.token_bytes(8)
        self.formation = TeamFormation(rank, len(tasks), own_id)
        self._rank = rank
        self._matcher = CallMatcher()
        self._others = {other: _OtherMember(task) for other, task in enumerate(tasks) if other != rank}
        self._states = TaskStates()
        self._read_at = time.monotonic()
        """The start of the last read from the queue."""
        self._error: errors.TeamError | None = None
        """The first error that another member has sent, or that a poll has found."""
        self.closing = False
        """True from the start of close()."""
        # The id of a task's consumer shows whether the member that formed the team still has the task.
        arguments = {**client, "client_id": _client_id(tasks[rank], own_id), "source": tasks[rank]}
        self._client = Client(overflow="block", **arguments)
        self._subscription = self._client.recv(tasks[rank], timeout=_TICK_SECONDS)
        self._receiver = self._subscription._receiver
        try:
            self._lost_baseline, self._polled = math.inf, False
            """The number of messages that were possibly lost at the last poll; False during a poll."""
            self.begin(0, "Team()", timeout)
            messaging_thread().start(self._poll([]), self._on_polled)
            next_join = 0.0
            while not self.formation.started:
                if rank and time.monotonic() >= next_join:
                    self._send(0, self.formation.build_notice(Kind.JOIN, own_id))
                    next_join = time.monotonic() + _JOIN_INTERVAL_SECONDS
                self._wait(self.formation.missing_ranks())
        except BaseException:
            self._client.close(0)
            raise

    def _send(self, rank: int, message: Message) -> bool:
        """Send a message, or return False if the buffer is full."""
        return self._client.try_send(self._others[rank].task, message.pack())

    # --- calls -----------------------------------------------------------------------------------

    def begin(self, number: int, call: str, timeout: float | None) -> None:
        """Begin a call, which may exchange values several times. timeout: None for no limit."""
        self._number, self._call, self._timeout = number, call, math.inf if timeout is None else timeout
        self._call_started = self._last_logged = time.monotonic()
        self._next_poll = self._call_started + min(_POLL_AFTER_SECONDS, self._timeout)

    def exchange(self, values: dict[int, Data], sources: Collection[int], kind: Kind) -> dict[int, Data]:
        """Send values to ranks, and return the next values of the sources, in their order.

        Both may include this rank. Empties `values`, because values can be large. Raises TeamError.
        """
        if kind == Kind.CALL:
            self._matcher.begin(self._number, self._call)
        received = {self._rank: values.pop(self._rank)} if self._rank in values else {}
        unsent = {rank: self._pieces(values.pop(rank), kind) for rank in [*values]}
        while True:
            for rank in {*sources} - received.keys():
                if (value := self._matcher.take(rank, kind)) is not None:
                    received[rank] = value
            self._send_pieces(unsent, kind)
            awaited = sorted({rank for rank in unsent if unsent[rank]}.union({*sources} - received.keys()))
            if not awaited:
                return {rank: received[rank] for rank in sources}
            if departed := [rank for rank in awaited if self._others[rank].left_at]:
                text = f"{self._call}: a rank has left the team: {self._describe(departed)}"
                raise errors.TeamMismatchError(text)
            self._wait(awaited)

    def _pieces(self, value: Data, kind: Kind) -> list[Message]:
        fields = self.formation.team, self._number, self._rank, kind, 0, len(value), 0, self._call
        starts = range(0, max(1, len(value)), PIECE_BYTES)
        return [Message(*fields, memoryview(value)[each : each + PIECE_BYTES]) for each in starts]

    def _send_pieces(self, unsent: Mapping[int, list[Message]], kind: Kind) -> None:
        """Send the pieces that the windows and the buffer accept, and confirm the received ones."""
        streams, accepted = self._matcher.streams, True
        while accepted:
            # Small pieces for several ranks take one frame, which costs the workers less than one for each.
            batch, size = dict[int, TaskMessage](), 0
            for rank, pieces in unsent.items():
                stream = streams[rank, kind]
                if pieces and stream.sent < stream.confirmed + WINDOW and size < PIECE_BYTES:
                    payload = pieces[0]._replace(position=stream.sent, taken=stream.taken).pack()
                    batch[rank] = TaskMessage(self._others[rank].task, payload)
                    size += len(payload)
            accepted = bool(batch) and self._client.try_send(batch.values())
            for rank in batch if accepted else ():
                del unsent[rank][0]
                streams[rank, kind].sent += 1
                streams[rank, kind].reported = streams[rank, kind].taken
        for (rank, stream_kind), stream in streams.items():
            if stream.taken >= stream.reported + WINDOW // 2:
                note = Message(self.formation.team, 0, self._rank, stream_kind, -1, 0, stream.taken)
                if self._others[rank].left_at or self._send(rank, note):
                    stream.reported = stream.taken

    # --- receiving -------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Process the messages that arrive within a short time."""
        previous_read, self._read_at = self._read_at, time.monotonic()
        try:
            batch = next(self._subscription)
        except (errors.WaitTimeoutError, errors.UnreachableError):
            return
        except errors.SupersededError as error:
            text = f"another process has taken rank {self._rank} over: {error}"
            raise errors.TeamChangedError(text) from error
        for payload in batch.payloads:
            self._add(unpack(payload), previous_read)
        self._subscription.acknowledge()

    def _add(self, message: Message | None, previous_read: float) -> None:
        """Process a message, which has arrived after the time `previous_read`."""
        if message is None or message.rank not in self._others or self.formation.is_stale(message):
            self.stale_messages += 1
            return
        kind, other = message.kind, self._others[message.rank]
        for target, answer in self.formation.add(message):
            self._send(target, answer)  # if the buffer is full, the next JOIN replaces the answer
        if kind in {Kind.LEAVE, Kind.ABORT}:
            other.left_at = previous_read
            if kind == Kind.ABORT and self._error is None:
                self._error = message.abort_error()
        elif kind in {Kind.CALL, Kind.SEND} and not self.closing:
            other.last_call = message.call or other.last_call
            self._matcher.add(message)
        other.last_message_at = time.monotonic()

    # --- waiting ---------------------------------------------------------------------------------

    def _wait(self, ranks: Sequence[int]) -> None:
        """Process messages. Raise an error if a rank is lost or has aborted, or the timeout has passed."""
        if self._polled and self._read_at >= self._next_poll:
            self._next_poll, self._polled = self._read_at + POLL_SECONDS, False
            messaging_thread().start(self._poll(ranks), self._on_polled)
        # After the timeout, wait a little for a poll in progress, and read the messages that have arrived.
        overdue = self._read_at - self._call_started - self._timeout
        if overdue >= 0 and (overdue > _MAX_OVERDUE_SECONDS or (self._polled and not self._receiver.buffer)):
            text = f"waited {self._timeout:g} s for {len(ranks)} of {len(self._others)} other ranks"
            state = "" if self._receiver.connected else f"; this rank's subscription: {self._receiver.state}"
            if self._rank and not self.formation.started:
                state += "; the error of rank 0 names the ranks that have not joined"
            raise errors.TeamTimeoutError(f"{self._call}: {text}: {self._describe(ranks)}{state}")
        if self._read_at - self._last_logged >= _LOG_INTERVAL_SECONDS:
            self._last_logged = self._read_at
            logger.warning("team.waiting", extra={"call": self._call, "ranks": self._describe(ranks)})
        self._receive()
        if self._error is not None:
            raise self._error

    async def _poll(self, ranks: Sequence[int]) -> None:
        """Poll the consumers of these ranks, on the loop. Raise an error if a rank, or a message, is lost."""
        tasks = [self._others[rank].task for rank in ranks]
        await self._states.poll(self._receiver, tasks, consumer_ids=True)
        for rank, task in zip(ranks, tasks, strict=True) if self.formation.started else ():
            state = self._states[task]
            if state.consumer_id not in ("", _client_id(task, self.formation.ids[rank])):
                raise errors.TeamChangedError(f"{self._call}: {state.consumer_id} has taken rank {rank} over")
            if time.monotonic() - max(state.no_consumer_since, self._call_started) >= NO_CONSUMER_SECONDS:
                raise errors.RankLostError(f"{self._call}: a process has exited: {self._describe([rank])}")
        connections = self._receiver.connections
        if connections is None or self._receiver.settings.ack_mode == "processed":
            return
        status = await connections.status(self._receiver.address, self._receiver.tasks)
        lost = sum(status.possibly_lost_messages.values())
        if lost > self._lost_baseline or self._client.possibly_lost:
            text = f"a worker has failed, and messages of rank {self._rank} may be lost"
            raise errors.RankLostError(f'{self._call}: {text}; ack_mode="processed" prevents this')
        self._lost_baseline = lost

    def _on_polled(self, poll: Any) -> None:
        """Store the error of a poll. Other errors than TeamError: a worker is unreachable."""
        self._polled, error = True, poll.exception()
        if isinstance(error, errors.TeamError):
            self._error = self._error or error

    def _describe(self, ranks: Sequence[int]) -> str:
        """Describe the first ten of these ranks."""
        return ". ".join(f"rank {r} {self._others[r].describe(self._states)}" for r in ranks[:10])

    # --- the end ---------------------------------------------------------------------------------

    def close(self, error: BaseException | None) -> None:
        """Send LEAVE, or ABORT with up to 2,000 characters of the error, to the others; close the client."""
        now, self.closing = time.monotonic(), True
        seconds = _LEAVE_SECONDS if error is None else _LEAVE_SECONDS / 3
        still_reads_after = now - seconds / 2  # a member that has left after this time still reads
        try:
            raw = b"" if error is None else f"{type(error).__name__}: {error}"[:2000].encode(errors="replace")
            note = self.formation.build_notice(Kind.ABORT if raw else Kind.LEAVE, raw)
            if self._read_at < still_reads_after:
                self._receive()  # members that have left in the meantime would not read the note
            unsent = {rank for rank, each in self._others.items() if not 0 < each.left_at < still_reads_after}
            # The last messages of the others would stay in the queue of this task, and delay a drain.
            while time.monotonic() < now + seconds:
                unsent = {rank for rank in unsent if not self._send(rank, note)}
                if not unsent and all(each.left_at for each in self._others.values()):
                    break
                self._receive()
        except errors.TuplewireError as problem:
            logger.info("team.close_failed", extra={"reason": str(problem)})
        finally:
            try:
                self._client.close(None if error is None else _LEAVE_SECONDS)
            except errors.FlushTimeoutError as late:  # its messages arrive, or another rank raises an error
                logger.warning("team.unacknowledged", extra={"reason": str(late)})


def _client_id(task: int, member_id: bytes) -> str:
    return f"team-{task}-{member_id.hex()}"
