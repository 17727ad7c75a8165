"""A sender's session: unacknowledged messages and available credit.

This module does no I/O. The rules are in docs/reference/wire.md.
"""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Iterable
from itertools import islice

from tuplewire.v1.messaging_pb2 import Ack, AckMode, ErrorCode, Frame, Group, Hello, TaskCredit, Welcome

MOST_FRAMES = 8
"""Maximum number of frames in flight; the protocol allows 64."""
FRAME_MESSAGES = 100


class SendSession:
    """The state of a sender that persists across streams."""

    def __init__(self, topology: str, sender_id: str, incarnation: int) -> None:
        self.hello = Hello(
            protocol_version=1,
            topology=topology,
            sender_id=sender_id,
            incarnation=incarnation,
            ack_mode=AckMode.ACK_MODE_QUEUED,
        )
        """The first request of every stream; contains the last acknowledged frame."""
        self.sequence = 0
        """The sequence number of the last new frame."""
        self.waiting: defaultdict[int, deque[Group]] = defaultdict(deque)
        """The messages of each task that are not in a frame yet; each group holds one message."""
        self.in_flight: deque[Frame] = deque()
        self.resend: deque[Frame] = deque()
        """Frames in flight that must be resent over a new stream."""
        self.sent: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
        """Messages and bytes sent to each task since the start of the session."""
        self.credit: dict[int, TaskCredit] = {}
        self.initial = TaskCredit()
        self.accepted = self.acknowledged = self.refused = 0

    def accept(self, task: int, payload: bytes) -> None:
        """Accept a message for sending."""
        self.waiting[task].append(Group(task=task, lengths=[len(payload)], data=payload))
        self.accepted += 1

    @property
    def pending(self) -> int:
        """Number of messages that are neither acknowledged nor rejected."""
        return self.accepted - self.acknowledged - self.refused

    def welcome(self, welcome: Welcome) -> None:
        """Continue at the receiver's position; start again if the receiver does not know this session."""
        self.initial = welcome.initial_credit
        if welcome.receiver_incarnation == self.hello.receiver_incarnation:
            self.ack(Ack(sequence=welcome.last_sequence, credits=welcome.credits, refusals=welcome.refusals))
            self.resend = deque(self.in_flight)
            return
        self.hello.receiver_incarnation = welcome.receiver_incarnation
        for frame in reversed(self.in_flight):
            for group in frame.groups:
                self.waiting[group.task].extendleft(reversed(list(singly(group))))
        self.in_flight.clear()
        self.resend.clear()
        self.hello.acknowledged = self.sequence = 0
        self.sent.clear()
        self.credit.clear()
        self.grant(welcome.credits)

    def ack(self, ack: Ack) -> None:
        """Settle the frames up to a sequence number, except rejected messages, and apply new credit."""
        for refusal in ack.refusals:
            self.refused += refusal.messages
            self.acknowledged -= refusal.messages  # added below, with its frame
            code = ErrorCode.Name(refusal.code)
            print(f"{refusal.messages} to task {refusal.task}: {code}: {refusal.detail}", file=sys.stderr)
        while self.in_flight and self.in_flight[0].sequence <= ack.sequence:
            self.acknowledged += sum(len(group.lengths) for group in self.in_flight.popleft().groups)
        self.hello.acknowledged = max(self.hello.acknowledged, ack.sequence)
        self.grant(ack.credits)

    def grant(self, credits_: Iterable[TaskCredit]) -> None:
        """Apply the latest credit."""
        self.credit.update((each.task, each) for each in credits_)

    def next_frame(self) -> Frame | None:
        """Return the next frame to write; None without messages, credit or free slots in flight."""
        if self.resend:
            return self.resend.popleft()
        if len(self.in_flight) >= MOST_FRAMES:
            return None
        groups = [group for task in self.waiting if (group := self.take(task)).lengths]
        if not groups:
            return None
        self.sequence += 1
        self.in_flight.append(Frame(sequence=self.sequence, groups=groups))
        return self.in_flight[-1]

    def take(self, task: int) -> Group:
        """Take as many messages as the task's credit allows; all of them are marked redelivered, or none."""
        sent, credit, waiting = self.sent[task], self.credit.get(task, self.initial), self.waiting[task]
        taken = Group(task=task, redelivered=bool(waiting) and waiting[0].redelivered)
        for message in list(islice(waiting, FRAME_MESSAGES)):
            if message.redelivered != taken.redelivered:
                break
            if sent[0] >= credit.messages or sent[1] >= credit.bytes:
                break
            waiting.popleft()
            sent[0] += 1
            sent[1] += len(message.data)
            taken.lengths.extend(message.lengths)
            taken.data += message.data
        return taken


def singly(group: Group) -> Iterable[Group]:
    """Return each message as a separate group, marked redelivered: it may have been delivered before."""
    start = 0
    for length in group.lengths:
        data = group.data[start : start + length]
        yield Group(task=group.task, lengths=[length], data=data, redelivered=True)
        start += length
