"""A SendSession with numbered messages, and the contents of its frames."""

from __future__ import annotations

from itertools import count
from typing import Any
from unittest import mock

from helpers.cursors import ack_of, credit_of
from tuplewire.session import send
from tuplewire.session.flow import OutFrame
from tuplewire.session.ledger import SettledMessages
from tuplewire.session.send import SendSession
from tuplewire.settings.config import AckMode, SessionSettings
from tuplewire.values.group import TaskGroup
from tuplewire.wire import messaging_pb2 as pb

PLENTY = 1_000_000


def reopen(session: SendSession, incarnation: int = 7, worker: int = 0) -> None:
    """Connect to a new receiver with plenty of credit, by the incarnations of session and worker."""
    welcome = pb.Welcome(
        session_id=incarnation,
        initial_credit=credit_of(0, PLENTY, PLENTY, 0),
        max_message_bytes=PLENTY,
        max_request_bytes=8 * PLENTY,
        worker_id="w",
        worker_incarnation=worker,
    )
    session.on_connected(welcome)


class Sending:
    """A SendSession with numbered messages. Its ledger must be balanced after every step."""

    def __init__(
        self, *, processed: bool = False, opened: bool = True, initial: int = PLENTY, **settings: Any
    ) -> None:
        self.session = SendSession(
            SessionSettings(ack_mode=AckMode.PROCESSED if processed else AckMode.QUEUED, **settings)
        )
        self._numbers = count()
        if opened:
            self.open(initial=initial)

    def open(
        self,
        incarnation: int = 7,
        sequence: int = 0,
        *,
        initial: int = PLENTY,
        max_message_bytes: int = 2**30,
        max_request_bytes: int = 2**31,
    ) -> list[SettledMessages]:
        """Connect; the receiver has accepted frames up to this sequence."""
        welcome = pb.Welcome(
            session_id=incarnation,
            accepted_sequence=sequence,
            initial_credit=credit_of(0, initial, PLENTY, 0),
            max_message_bytes=max_message_bytes,
            max_request_bytes=max_request_bytes,
        )
        self.session.on_connected(welcome)
        return self._settled()

    def offer(self, task: int, messages: int = 1, source: int | None = None, tag: Any = None) -> bool:
        """Offer `messages` messages of one byte; each byte is the message's number."""
        payloads = [bytes([next(self._numbers)]) for _ in range(messages)]
        return self.offer_groups(TaskGroup.of(task, payloads, source), tag=tag)

    def offer_groups(self, *groups: TaskGroup, tag: Any = None) -> bool:
        """Offer groups as one batch."""
        taken = self.session.offer(groups, tag)
        self._add_up()
        return taken

    def frame(self) -> OutFrame | None:
        """Return the next frame."""
        frame = self.session.next_frame()
        self._add_up()
        return frame

    def frames(self) -> list[OutFrame]:
        """Return every frame that can be written now, without a limit on frames in flight."""
        with mock.patch.object(send, "MAX_QUICK_FRAMES_IN_FLIGHT", PLENTY):
            return list(iter(self.frame, None))

    def write(self, task: int, messages: int = 1, source: int | None = None, tag: Any = None) -> None:
        """Offer `messages` messages, and write every frame that can be written."""
        self.offer(task, messages, source, tag)
        self.frames()

    def update(
        self, sequence: int, *, grants: tuple[pb.TaskCredit, ...] = (), refusals: tuple[pb.Refusal, ...] = ()
    ) -> list[SettledMessages]:
        """Receive an acknowledgement."""
        self.session.apply_ack(ack_of(sequence, grants, refusals))
        return self._settled()

    def _settled(self) -> list[SettledMessages]:
        self._add_up()
        return self.session.take_settled()

    def _add_up(self) -> None:
        ledger = self.session.ledger()
        assert ledger.balanced, str(ledger)
        assert ledger.pending == self.session.messages

    @property
    def acknowledged(self) -> int:
        return self.session.ledger().acknowledged

    @property
    def dropped(self) -> dict[str, int]:
        """The number of dropped messages, by reason."""
        return {reason: number for reason, number in self.session.ledger().dropped.items() if number}


def contents(frames: list[OutFrame]) -> list[tuple[int, list[tuple[int, bytes]]]]:
    """Return each frame's number and its (task, payloads) runs."""
    return [
        (frame.sequence, [(run[0].task, b"".join(group.data for group in run)) for run in frame.runs])
        for frame in frames
    ]


def payloads(frames: list[OutFrame]) -> bytes:
    """Return all payloads of one byte, in order."""
    return b"".join(group.data for frame in frames for run in frame.runs for group in run)


def groups(frames: list[OutFrame]) -> list[TaskGroup]:
    """Return all groups, in order."""
    return [group for frame in frames for run in frame.runs for group in run]
