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
from typing import Any

from tuplewire import errors
from tuplewire.client import Client
from tuplewire.connection.control_client import ControlClient
from tuplewire.connection.control_clients import ControlClients
from tuplewire.connection.loop import messaging_loop
from tuplewire.connection.task_owners import At
from tuplewire.team.protocol import Answers, Call, Forming, Matching, Message, unpack
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
_ABORT_SECONDS = 3.0
"""The maximum time that a leaving member with an error waits for acknowledgements."""
_MAX_TEXT = 2000
_LARGE_BYTES = 32 * 1024
_MOST_AT_ONCE = 32
"""Messages are sent in batches that end with a large message, or after this number of small ones."""
_MOST_NAMED = 10
"""The maximum number of ranks in the text of an error."""


Step = tuple[Mapping[int, Message], Collection[int]]
"""A step of a call: the values to send, by rank, and the ranks to receive a value from."""
Steps = Generator[Step, dict[int, Message], Any]
"""A call: it yields its steps, gets the received values by rank, and returns the result."""


@dataclass
class _OtherMember:
    """The known state of another member. Times are monotonic, in seconds."""

    task: int
    worker_id: str = "an unknown worker"
    heard: float | None = None
    consumer: str | None = None
    """The id of its consumer; empty: there is no consumer; None: not known."""
    gone_since: float = math.inf
    unread: int = 0

    def look(self, held: HeldTask | None) -> None:
        """Apply the state of the task at its worker; None: no worker has it."""
        self.consumer = None if held is None else held.consumer
        self.unread = 0 if held is None else held.last_sequence - held.acknowledged_sequence
        self.gone_since = min(self.gone_since, time.monotonic()) if self.consumer == "" else math.inf

    def facts(self, last: Message | None) -> str:
        """Describe the member: `(task 102, worker-1): last message 61 s ago in barrier #11, subscribed`."""
        now, call = time.monotonic(), "" if last is None else f" in {last}"
        heard = "no message yet" if self.heard is None else f"last message {now - self.heard:.0f} s ago{call}"
        gone = now - self.gone_since
        state = f"no subscriber for {gone:.0f} s" if gone >= 0 else "subscribed"
        state += f", {self.unread} message{'s' * (self.unread != 1)} unread"
        state = "not found at a worker" if self.consumer is None else state
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
        self._others = {other: _OtherMember(task) for other, task in enumerate(tasks) if other != rank}
        self._left: dict[int, float] = {}
        """The ranks that have left, and a time before their last messages arrived."""
        self._read = time.monotonic()
        """The time of the last read from the queue."""
        self._problem: errors.TuplewireError | None = None
        """The last error of the own worker since it was last reachable."""
        self._abort: errors.TeamError | None = None
        self._closing = False
        # The id of a task's consumer shows whether the member that formed the team still has the task.
        client = {**client, "client_id": _client_id(tasks[rank], own_id), "source": tasks[rank]}
        self._client = Client(address, overflow="block", **client)
        credentials = client.get("credentials")
        self._controls = ControlClients(lambda at: ControlClient(at, _POLL_TIMEOUT, credentials=credentials))
        self._processed = client.get("ack_mode") == "processed"
        self._subscription = self._client.recv(tasks[rank], timeout=_TICK_SECONDS)
        self._next_poll = 0.0
        self._waits_for: Callable[[], list[int]] = list
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
            self._client.send(self.tasks[rank], message.packed())

    # --- calls -----------------------------------------------------------------------------------

    def run(self, call: Message, steps: Steps, timeout: float) -> Any:
        """Do the steps of a call; return its result. Raises TeamError: the team is broken then."""
        self._begin(call, timeout, list)
        call = call._replace(team=self.forming.team, rank=self.rank)
        try:
            step, number = next(steps), 0
            while True:
                step, number = steps.send(self._do(call._replace(step=number), *step)), number + 1
        except StopIteration as end:
            return end.value

    def _do(
        self, call: Message, outgoing: Mapping[int, Message], sources: Collection[int]
    ) -> dict[int, Message]:
        """Do a step of a call; return the received values."""
        direct, matching, received = call.call == Call.SEND, self._matching, dict[int, Message]()
        if not direct:
            matching.begin(call, call.step, sources)
        values = {rank: call.with_value(each) for rank, each in outgoing.items()}
        unsent = {rank: deque(range(each.pieces())) for rank, each in values.items()}
        missing = set(sources)
        self._waits_for = lambda: sorted(missing.union(unsent))
        while True:
            for rank in list(missing):
                if (value := matching.take((rank, direct), call.number, call.step)) is not None:
                    received[rank] = value
                    missing.remove(rank)
            for rank in self._left.keys() & self._waits_for():
                raise errors.TeamMismatchError(f"{call}: a rank has left the team: {self._facts([rank])}")
            self._send_pieces(values, unsent, direct=direct)
            if not missing and not unsent:
                return received
            self._wait()

    def _send_pieces(
        self, values: Mapping[int, Message], unsent: dict[int, deque[int]], *, direct: bool
    ) -> None:
        """Send the pieces that the window accepts, several small ones at once, and confirm taken ones."""
        batch: list[tuple[int, bytes]] = []
        for rank, pieces in list(unsent.items()):
            while pieces and self._matching.free((rank, direct)):
                batch.append((self.tasks[rank], values[rank].packed(pieces.popleft())))
                self._matching.sent[rank, direct] += 1
                if len(batch[-1][1]) >= _LARGE_BYTES or len(batch) >= _MOST_AT_ONCE:
                    self._send(batch)
            if not pieces:
                del unsent[rank]
        self._send(batch)
        for (rank, of_sends), taken in self._matching.confirmations():
            note = Message(self.forming.team, 0, self.rank, Call.CONFIRM, dtype=int(of_sends), size=taken)
            # If the buffer is full, the next message causes a confirmation.
            if rank in self._left or self._client.try_send(self.tasks[rank], note.packed()):
                self._matching.reported[rank, of_sends] = taken

    def _send(self, batch: list[tuple[int, bytes]]) -> None:
        """Send messages to tasks, and empty the list."""
        while batch and not self._client.try_send(TaskMessageBatch.from_columns(*zip(*batch, strict=True))):
            self._wait()  # the buffer is full: read, so that the others can send
        batch.clear()

    # --- receiving -------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Process the messages that arrive within a short time."""
        try:
            batch = next(self._subscription)
        except (errors.WaitTimeoutError, errors.UnreachableError) as error:
            self._problem = error if isinstance(error, errors.UnreachableError) else None
            self._read = time.monotonic()
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
        self._read, self._problem = time.monotonic(), None

    def _add(self, message: Message) -> None:
        rank = message.rank
        if message.call <= Call.START:
            if not self.forming.is_member(message):  # of a process that has left, or a new one: poll which
                self.stale += 1
                self._next_poll = 0.0
                return
            team = self.forming.team
            self._send_all(self.forming.add(message))
            if self.forming.team != team:  # a member was restarted: forget the messages of the other team
                self._matching, self._left, self._abort = Matching(), {}, None
        elif not self.forming.ids or message.team != self.forming.team:
            self.stale += 1
            return
        elif message.call == Call.CONFIRM:
            stream = rank, bool(message.dtype)
            self._matching.confirmed[stream] = max(self._matching.confirmed[stream], message.size)
        elif message.call == Call.LEAVE:
            self._left[rank] = self._read
        elif message.call == Call.ABORT:
            self._left[rank] = self._read
            text = bytes(message.body).decode(errors="replace")
            changed = text.startswith(f"{errors.TeamChangedError.__name__}:")
            kind = errors.TeamChangedError if changed else errors.TeamAbortedError
            self._abort = self._abort or kind(f"rank {rank} has left the team: {text}")
        elif not self._closing:
            self._matching.add(message)
        self._others[rank].heard, self._others[rank].gone_since = time.monotonic(), math.inf

    # --- waiting ---------------------------------------------------------------------------------

    def _begin(self, call: object, timeout: float, waits_for: Callable[[], list[int]]) -> None:
        """Begin a call, for the texts of errors. waits_for: returns the ranks that the call waits for."""
        self._call, self._timeout, self._waits_for = call, timeout, waits_for
        self._began = self._logged = time.monotonic()

    def _wait(self) -> None:
        """Process messages. Raise an error if a member is lost or the timeout has passed."""
        now, ranks = time.monotonic(), self._waits_for()
        expired = now - self._began >= self._timeout
        if expired or (now >= self._next_poll and now - self._began >= _QUIET_SECONDS):
            self._poll(ranks)
        if expired:
            names = f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks[:_MOST_NAMED]))}"
            about = f"no message from {names} of {len(self.tasks)}" if ranks else "the send buffer is full"
            facts = f". {self._facts(ranks)}" if ranks else ""
            own = f"; this rank's worker: {self._problem}" if self._problem else ""
            raise errors.TeamTimeoutError(f"{self._call}: {about} for {self._timeout:g} s{facts}{own}")
        if now - self._logged >= _LOG_SECONDS:
            self._logged = now
            logger.warning("team.waiting", extra={"call": str(self._call), "ranks": self._facts(ranks)})
        self._receive()
        if self._abort is not None:
            raise self._abort

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
            if time.monotonic() - max(member.gone_since, self._began) >= _GONE_SECONDS:
                raise errors.RankLostError(f"{self._call}: a process has exited: {self._facts([rank])}")
        before, now = self._lost, self._possibly_lost()
        self._lost = before if now is None else now
        rises = now is not None and before is not None and any(n > before.get(at, 0) for at, n in now.items())
        if rises or (self._client.possibly_lost and not self._processed):
            text = f"a worker has failed, and messages of rank {self.rank} may be lost"
            raise errors.RankLostError(f'{self._call}: {text}; ack_mode="processed" prevents this')

    def _look(self, members: Sequence[_OtherMember]) -> None:
        """Find the consumers of members at the workers of their tasks."""
        receiver, topology = self._subscription._receiver, self._client.topology
        places: dict[At, list[int]] = {}
        try:
            places = messaging_loop().run(receiver.workers_of(each.task for each in members))
        except errors.TuplewireError as error:
            self._problem = self._problem or error
        ids = {task: worker_id for (_, worker_id), theirs in places.items() for task in theirs}
        tasks = {at: [PolledTask(task=each) for each in theirs] for (at, _), theirs in places.items()}
        answers = self._controls.each(
            tasks, lambda at: at.poll(PollRequest(topology=topology, tasks=tasks[at.address]))
        )
        polled = [answer for answer in answers.values() if isinstance(answer, PollResponse)]
        held = {each.task: each for answer in polled for each in answer.tasks}
        for each in members:
            each.worker_id = ids.get(each.task, each.worker_id)
            each.look(held.get(each.task))
        if len(held) < len(members):
            messaging_loop().call(receiver.forget_workers)

    def _possibly_lost(self) -> dict[str, int] | None:
        """Return the number of messages that the own worker has possibly lost, by worker, if it is known."""
        with contextlib.suppress(errors.TuplewireError):
            if not self._processed:
                return dict(self._controls[self._client.address].status(max_tasks=0).possibly_lost)
        return None

    def _facts(self, ranks: Iterable[int]) -> str:
        named = list(ranks)[:_MOST_NAMED]
        return ". ".join(f"rank {r} {self._others[r].facts(self._matching.last.get(r))}" for r in named)

    # --- the end ---------------------------------------------------------------------------------

    def close(self, error: BaseException | None) -> None:
        """Send the end to the other members, and close the connections."""
        call, body = Call.LEAVE, b""
        if error is not None:
            call, body = Call.ABORT, f"{type(error).__name__}: {error}"[:_MAX_TEXT].encode(errors="replace")
        note = Message(self.forming.team, 0, self.rank, call, body=body)
        deadline, self._closing = time.monotonic() + _LEAVE_SECONDS, True
        try:
            # A member that has left a moment ago still reads.
            gone = {rank for rank, at in self._left.items() if time.monotonic() - at > _LEAVE_SECONDS / 2}
            unsent = self._others.keys() - gone
            while True:
                unsent = {r for r in unsent if not self._client.try_send(self.tasks[r], note.packed())}
                # The last messages of the others would stay in the queue of this task, and delay a drain.
                waits = unsent or self._others.keys() - self._left.keys()
                if not waits or time.monotonic() >= deadline:
                    break
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


def _client_id(task: int, member_id: int) -> str:
    return f"team-{task}-{member_id:016x}"
