"""The sending end of a session: what is kept, what is sent again, what settles."""

from __future__ import annotations

from itertools import count
from typing import Any
from unittest import mock

import pytest

from tuplewire.config import AckMode, SessionSettings
from tuplewire.errors import MessageTooLargeError, ProtocolError
from tuplewire.group import TaskGroup
from tuplewire.session import send
from tuplewire.session.credit import Grant
from tuplewire.session.ledger import DropReason
from tuplewire.session.receive import AckUpdate, Refusal
from tuplewire.session.send import Opened, OutFrame, SendWindow, Settled

PLENTY = 1_000_000


class Sending:
    """A window whose messages number themselves; its ledger must add up after every step."""

    def __init__(self, *, processed: bool = False, opened: bool = True, **settings: Any) -> None:
        self.window = SendWindow(
            SessionSettings(ack_mode=AckMode.PROCESSED if processed else AckMode.QUEUED, **settings)
        )
        self._numbers = count()
        if opened:
            self.open()

    def open(
        self,
        incarnation: int = 7,
        sequence: int = 0,
        *,
        initial: int = PLENTY,
        initial_bytes: int = PLENTY,
        grants: tuple[Grant, ...] = (),
        refusals: tuple[Refusal, ...] = (),
        max_message_bytes: int = 2**30,
        max_request_bytes: int = 2**31,
    ) -> list[Settled]:
        """Connect; the receiver has accepted frames up to this sequence."""
        welcome = Opened(
            incarnation,
            Grant(0, initial, initial_bytes, 0),
            AckUpdate(sequence, list(grants), list(refusals)),
            max_message_bytes,
            max_request_bytes,
        )
        return self._adding_up(self.window.opened(welcome))

    def offer(self, task: int, messages: int = 1, source: int | None = None, tag: Any = None) -> bool:
        """Offer so many messages of one byte; each byte is the message's number."""
        payloads = [bytes([next(self._numbers)]) for _ in range(messages)]
        return self.offer_groups(TaskGroup.of(task, payloads, source), tag=tag)

    def offer_groups(self, *groups: TaskGroup, tag: Any = None) -> bool:
        """Offer groups as one batch."""
        taken = self.window.offer(groups, tag)
        self._adding_up([])
        return taken

    def frame(self) -> OutFrame | None:
        """Return the next frame."""
        frame = self.window.next_frame()
        self._adding_up([])
        return frame

    def frames(self) -> list[OutFrame]:
        """Return every frame that can be written now, without a bound on those under way."""
        with mock.patch.object(send, "MAX_FRAMES_IN_FLIGHT", PLENTY):
            return list(iter(self.frame, None))

    def update(
        self, sequence: int, *, grants: tuple[Grant, ...] = (), refusals: tuple[Refusal, ...] = ()
    ) -> list[Settled]:
        """Hear an acknowledgement."""
        return self._adding_up(self.window.update(AckUpdate(sequence, list(grants), list(refusals))))

    def _adding_up(self, settled: list[Settled]) -> list[Settled]:
        ledger = self.window.ledger()
        assert ledger.balanced, str(ledger)
        assert ledger.pending == self.window.messages
        return settled

    @property
    def acknowledged(self) -> int:
        """Messages that are acknowledged."""
        return self.window.ledger().acknowledged

    @property
    def dropped(self) -> dict[str, int]:
        """Messages that were dropped, by reason."""
        return {reason: number for reason, number in self.window.ledger().dropped.items() if number}


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


# --- frames ---------------------------------------------------------------------------------------


def test_nothing_before_the_welcome() -> None:
    """Before a receiver has granted anything, messages wait."""
    sending = Sending(opened=False)
    assert sending.offer(1)
    assert sending.frame() is None
    sending.open()
    assert contents(sending.frames()) == [(1, [(1, b"\0")])]


def test_what_queued_up_goes_out_together() -> None:
    """Everything that waits is one frame, with neighbours of one (source, task) as one run."""
    sending = Sending()
    sending.offer(1, 2, source=5)
    sending.offer(1, 1, source=5)
    sending.offer(1, 1, source=6)
    sending.offer(2, 1, source=6)
    sending.offer(2, 1)
    (frame,) = sending.frames()
    assert contents([frame]) == [(1, [(1, b"\0\1\2"), (1, b"\3"), (2, b"\4"), (2, b"\5")])]
    assert (frame.messages, frame.size_bytes) == (6, 6)


def test_frames_are_numbered_by_one() -> None:
    """The numbers are 1, 2, 3."""
    sending = Sending()
    numbers = []
    for _ in range(3):
        sending.offer(1)
        numbers += [frame.sequence for frame in sending.frames()]
    assert numbers == [1, 2, 3]


def test_a_frame_is_cut_at_its_size() -> None:
    """No frame holds more payload than max_frame_bytes, and together they hold everything in order."""
    sending = Sending(max_frame_bytes=200)
    for _ in range(9):
        sending.offer_groups(TaskGroup.of(1, [b"x" * 30, b"y" * 30]))
    frames = sending.frames()
    assert len(frames) > 1
    assert all(frame.size_bytes <= 200 for frame in frames)
    assert payloads(frames) == (b"x" * 30 + b"y" * 30) * 9


def test_few_frames_are_under_way_at_once() -> None:
    """What is beyond the bound waits for an acknowledgement, and then goes out together."""
    sending = Sending()
    for _ in range(20):
        sending.offer(1, 1)
        sending.frame()
    assert sending.frame() is None
    sending.update(1)
    frame = sending.frame()
    assert frame is not None
    assert frame.messages == 20 - send.MAX_FRAMES_IN_FLIGHT


def test_a_group_larger_than_a_frame_is_cut() -> None:
    """A group over max_frame_bytes goes out in several frames; a larger message has one of its own."""
    sending = Sending(max_frame_bytes=100)
    sending.offer_groups(TaskGroup.of(1, [b"a" * 60, b"b" * 60, b"c" * 150, b"d"]))
    assert [frame.size_bytes for frame in sending.frames()] == [60, 60, 150, 1]


@pytest.mark.parametrize("size", [0, 1])
def test_small_messages_do_not_make_a_frame_large(size: int) -> None:
    """What describes the messages counts too: frames of empty messages stay within what a peer takes."""
    sending = Sending(max_frame_bytes=4_000, max_pending_task_messages=PLENTY)
    sending.offer_groups(TaskGroup.of(1, [bytes(size)] * 20_000))
    for task in range(2, 500):
        sending.offer_groups(TaskGroup.of(task, [bytes(size)]))
    frames = sending.frames()
    assert sum(frame.messages for frame in frames) == 20_498
    for frame in frames:
        assert sum(len(group.lengths) for run in frame.runs for group in run) <= 4_000
        assert len(frame.runs) <= 4_000 // 40


def test_tasks_take_turns() -> None:
    """A task with much to send does not keep another waiting for more than a frame."""
    sending = Sending(max_frame_bytes=100)
    sending.offer(1, 250)
    sending.offer(2, 1)
    first, second, *_ = sending.frames()
    assert [run[0].task for run in first.runs] == [1]
    assert 2 in [run[0].task for run in second.runs]


# --- bounds ---------------------------------------------------------------------------------------


def test_bound_in_messages() -> None:
    """A batch that would go over max_pending_messages is not taken, and nothing of it is."""
    sending = Sending(max_pending_messages=5)
    assert sending.offer(1, 3)
    assert not sending.offer(2, 3)
    assert sending.offer(3, 2)
    assert sending.window.messages == 5


def test_bound_in_bytes() -> None:
    """A batch that would go over max_pending_bytes is not taken."""
    sending = Sending(max_pending_bytes=5, max_message_bytes=5)
    assert sending.offer(1, 3)
    assert not sending.offer(2, 3)
    assert sending.offer(3, 2)
    assert sending.window.size_bytes == 5


def test_bound_per_task() -> None:
    """A task with max_pending_task_messages takes no more, and leaves room for others."""
    sending = Sending(max_pending_task_messages=4)
    assert sending.offer(1, 4)
    assert not sending.offer(1)
    assert sending.offer(2, 4)


def test_bound_per_task_counts_the_whole_batch() -> None:
    """Groups of one batch to one task count together against its bound."""
    sending = Sending(max_pending_task_messages=4)
    sending.offer(1, 2)
    assert not sending.offer_groups(TaskGroup.of(1, [b"", b""], 5), TaskGroup.of(1, [b""], 6))
    assert sending.window.messages == 2


@pytest.mark.parametrize("sending", [Sending(max_pending_messages=2), Sending(max_pending_task_messages=2)])
def test_a_batch_over_the_bound_is_taken_alone(sending: Sending) -> None:
    """A batch larger than a bound is taken when nothing else is held, so that it need not wait for ever."""
    assert sending.offer(1, 5)
    assert not sending.offer(1)
    sending.frames()
    sending.update(1)
    assert sending.offer(1, 5)


def test_acknowledged_messages_make_room() -> None:
    """What is acknowledged no longer counts against a bound."""
    sending = Sending(max_pending_messages=2)
    sending.offer(1, 2)
    sending.frames()
    assert not sending.offer(1)
    sending.update(1)
    assert sending.window.messages == sending.window.size_bytes == 0
    assert sending.offer(1)


def test_an_oversize_message_fails_alone() -> None:
    """A payload over the limit is named with its size and the limit; what else was sent goes on."""
    sending = Sending(max_message_bytes=10)
    sending.offer(1, 2)
    with pytest.raises(MessageTooLargeError, match=r"a message of 11 bytes to task 3 .* limit of 10 bytes"):
        sending.window.check([TaskGroup.of(2, [b"x" * 10] * 5), TaskGroup.of(3, [b"", b"x" * 11])])
    assert payloads(sending.frames()) == b"\0\1"


# --- credit ---------------------------------------------------------------------------------------


def test_sends_what_is_granted() -> None:
    """Messages beyond the grant wait for the next; a grant is a total, not an addition."""
    sending = Sending(opened=False)
    sending.open(initial=3)
    sending.offer(1, 8)
    assert payloads(sending.frames()) == b"\0\1\2"
    sending.update(1, grants=(Grant(1, 5, PLENTY, 0),))
    assert payloads(sending.frames()) == b"\3\4"


def test_a_message_may_start_while_bytes_are_left() -> None:
    """Credit in bytes stops the start of a message, not its end."""
    sending = Sending(opened=False)
    sending.open(initial_bytes=10)
    sending.offer_groups(TaskGroup.of(1, [b"", b"x" * 9, b"y" * 9, b"", b"z"]))
    assert [list(group.sizes()) for group in groups(sending.frames())] == [[0, 9, 9]]
    sending.update(1, grants=(Grant(1, PLENTY, 18, 0),))
    assert sending.frame() is None
    sending.update(1, grants=(Grant(1, PLENTY, 19, 0),))
    assert [list(group.sizes()) for group in groups(sending.frames())] == [[0, 1]]


def test_a_stopped_task_leaves_the_others_going() -> None:
    """Without credit for one task, messages to another are sent past it."""
    sending = Sending(opened=False)
    sending.open(initial=1)
    for _ in range(3):
        sending.offer(1)
        sending.offer(2)
    assert payloads(sending.frames()) == b"\0\1"
    sending.update(1, grants=(Grant(2, 99, PLENTY, 0),))
    assert payloads(sending.frames()) == b"\3\5"


def test_repeated_and_late_grants_change_nothing() -> None:
    """A grant that was heard before, or is older, takes nothing back and adds nothing."""
    sending = Sending(opened=False)
    sending.open(initial=2, initial_bytes=2)
    sending.offer(1, 9)
    sending.offer(2, 9)
    sending.frames()
    for granted in (5, 5, 3):
        sending.update(1, grants=(Grant(1, granted, PLENTY, 0), Grant(2, PLENTY, granted, 0)))
    assert contents(sending.frames()) == [(2, [(1, b"\2\3\4"), (2, b"\x0b\x0c\x0d")])]


def test_a_lost_grant_is_made_good_by_the_next() -> None:
    """Only the newest grant counts, however many before it were lost."""
    sending = Sending(opened=False)
    sending.open(initial=1)
    sending.offer(1, 9)
    sending.frames()
    sending.update(1, grants=(Grant(1, 7, PLENTY, 0),))
    assert len(payloads(sending.frames())) == 6


# --- settling -------------------------------------------------------------------------------------


def test_acknowledgements_are_cumulative() -> None:
    """An acknowledgement settles every frame up to it, with the token that came with each batch."""
    sending = Sending()
    for tag in "abc":
        sending.offer(1, 2, tag=tag)
        sending.frames()
    assert sending.update(2) == [Settled("a", 1, 2, 2, None), Settled("b", 1, 2, 2, None)]
    assert sending.acknowledged == 4


def test_repeated_and_late_acknowledgements_change_nothing() -> None:
    """Hearing an acknowledgement twice, or an older one after it, settles nothing."""
    sending = Sending()
    for _ in range(3):
        sending.offer(1)
        sending.frames()
    sending.update(2)
    assert sending.update(2) == sending.update(1) == []
    assert sending.acknowledged == sending.window.acknowledged == 2


def test_acknowledgement_of_what_was_never_sent() -> None:
    """A receiver that acknowledges frames which do not exist is an error, and nothing settles."""
    sending = Sending()
    sending.offer(1)
    sending.frames()
    with pytest.raises(ProtocolError, match="frame 2 was acknowledged, and 1 were sent"):
        sending.update(2)
    assert sending.acknowledged == 0


def test_processed_mode_settles_on_processed_offsets() -> None:
    """In the mode `processed` a message settles when its consumer is done with it, not when it is queued."""
    sending = Sending(processed=True)
    sending.offer(1, 2, tag="a")
    sending.offer(1, 3, tag="b")
    sending.frames()
    assert sending.update(1) == []
    assert sending.update(1, grants=(Grant(1, PLENTY, PLENTY, 4),)) == [Settled("a", 1, 2, 2, None)]
    assert sending.update(1, grants=(Grant(1, PLENTY, PLENTY, 5),)) == [Settled("b", 1, 3, 3, None)]


def test_processed_offsets_are_per_task() -> None:
    """Progress of one task settles nothing of another."""
    sending = Sending(processed=True)
    sending.offer(1, 1, tag="a")
    sending.offer(2, 1, tag="b")
    sending.frames()
    settled = sending.update(1, grants=(Grant(2, PLENTY, PLENTY, 1), Grant(1, PLENTY, PLENTY, 0)))
    assert [each.token for each in settled] == ["b"]


@pytest.mark.parametrize("processed", [False, True])
@pytest.mark.parametrize(
    ("code", "reason"), [("UNKNOWN_TASK", DropReason.UNKNOWN_TASK), ("NOT_LOCAL", DropReason.REFUSED)]
)
def test_refused_messages_are_dropped(code: str, reason: DropReason, *, processed: bool) -> None:
    """What the receiver refuses is counted as dropped by reason, and not as acknowledged."""
    sending = Sending(processed=processed)
    sending.offer(1, 2, source=3, tag="a")
    sending.offer(1, 1, source=4, tag="b")
    sending.offer(2, 1, tag="c")
    sending.frames()
    settled = sending.update(
        1,
        grants=(Grant(1, PLENTY, PLENTY, 3), Grant(2, PLENTY, PLENTY, 1)),
        refusals=(Refusal(1, 1, 3, code, "no"),),
    )
    assert settled == [
        Settled("a", 1, 2, 2, reason),
        Settled("b", 1, 1, 1, reason),
        Settled("c", 2, 1, 1, None),
    ]
    assert sending.dropped == {reason.value: 3}
    assert sending.acknowledged == 1


def test_a_repeated_refusal_changes_nothing() -> None:
    """A refusal that is heard again, by a reconnect for instance, drops nothing more."""
    sending = Sending()
    refusal = Refusal(1, 1, 1, "UNKNOWN_TASK", "no")
    for _ in range(2):
        sending.offer(1)
        sending.frames()
    sending.update(1, refusals=(refusal,))
    assert sending.update(1, refusals=(refusal,)) == []
    assert [each.dropped for each in sending.open(sequence=2, refusals=(refusal,))] == [None]
    assert sending.dropped == {"unknown_task": 1}


def test_refused_messages_do_not_shift_the_processed_offset() -> None:
    """A refusal behind messages that are still being worked on does not settle these."""
    sending = Sending(processed=True)
    sending.offer(1, 2, tag="working")
    sending.frames()
    sending.offer(1, 5, tag="refused")
    sending.frames()
    sending.offer(1, 1, tag="last")
    sending.frames()
    settled = sending.update(
        3, grants=(Grant(1, PLENTY, PLENTY, 5),), refusals=(Refusal(2, 1, 5, "NOT_LOCAL", "moved"),)
    )
    assert [each.token for each in settled] == ["refused"]
    assert [each.token for each in sending.update(3, grants=(Grant(1, PLENTY, PLENTY, 7),))] == ["working"]
    assert [each.token for each in sending.update(3, grants=(Grant(1, PLENTY, PLENTY, 8),))] == ["last"]


def test_abandon_gives_everything_up() -> None:
    """Messages in every state are dropped for the reason given, each with its token."""
    sending = Sending(processed=True, opened=False)
    sending.open(initial=2)
    for tag in "abc":
        sending.offer(1, tag=tag)
        sending.frames()
    sending.update(1)
    assert sorted(each.token for each in sending.window.abandon(DropReason.CLOSED)) == ["a", "b", "c"]
    assert sending.dropped == {"closed": 3}
    assert sending.window.messages == sending.window.size_bytes == 0
    assert sending.frame() is None


# --- resuming -------------------------------------------------------------------------------------


def test_resume_sends_again_what_was_not_accepted() -> None:
    """After a cut exactly the frames that the receiver lacks come again, numbered as before."""
    sending = Sending()
    for task in (1, 2, 1, 2):
        sending.offer(task)
    first = sending.frames()
    for task in (1, 2, 1):
        sending.offer(task)
        first += sending.frames()
    settled = sending.open(sequence=2)
    assert sum(each.messages for each in settled) == 5
    again = sending.frames()
    assert contents(again) == contents(first[2:])
    assert not any(group.redelivered for group in groups(again))


def test_resume_sends_what_is_new_after_what_is_old() -> None:
    """What was accepted while the connection was away follows what is sent again."""
    sending = Sending()
    sending.offer(1)
    sending.frames()
    sending.offer(1)
    sending.open()
    assert contents(sending.frames()) == [(1, [(1, b"\0")]), (2, [(1, b"\1")])]


def test_cuts_one_after_the_other() -> None:
    """A resumption that is cut itself is resumed in the same way."""
    sending = Sending()
    for _ in range(4):
        sending.offer(1)
        sending.frames()
    sending.open(sequence=1)
    assert [sending.frame().sequence for _ in range(2)] == [2, 3]  # type: ignore[union-attr]
    sending.open(sequence=2)
    assert contents(sending.frames()) == [(3, [(1, b"\2")]), (4, [(1, b"\3")])]


def test_acknowledged_while_sending_again() -> None:
    """A frame that is acknowledged before its turn to be sent again is not sent again."""
    sending = Sending()
    for _ in range(3):
        sending.offer(1)
        sending.frames()
    sending.open()
    sending.update(2)
    assert contents(sending.frames()) == [(3, [(1, b"\2")])]


def test_resume_keeps_credit() -> None:
    """Frames that are sent again take no new credit, and the welcome's grants count."""
    sending = Sending(opened=False)
    sending.open(initial=2)
    sending.offer(1, 9)
    sending.frames()
    sending.open(initial=2, grants=(Grant(1, 3, PLENTY, 0),))
    assert contents(sending.frames()) == [(1, [(1, b"\0\1")]), (2, [(1, b"\2")])]


@pytest.mark.parametrize("processed", [False, True])
def test_a_new_receiver_gets_everything_again(*, processed: bool) -> None:
    """A receiver without memory gets all that is not settled: in order, numbered anew, marked redelivered."""
    sending = Sending(processed=processed)
    for _ in range(2):
        for _ in range(2):
            sending.offer(1)
            sending.offer(2)
        sending.frames()
    sending.update(1)
    sending.open(incarnation=8)
    frames = sending.frames()
    left = b"\4\6\5\7" if not processed else b"\0\2\4\6\1\3\5\7"
    assert [frame.sequence for frame in frames] == [1]
    assert payloads(frames) == left
    assert all(group.redelivered for group in groups(frames))


def test_messages_that_were_never_sent_are_not_marked() -> None:
    """Only what may have been delivered carries the mark; what had no credit yet does not."""
    sending = Sending(opened=False)
    sending.open(initial=1)
    sending.offer(1, 2)
    sending.frames()
    sending.open(incarnation=8)
    sending.update(0, grants=(Grant(1, 2, PLENTY, 0),))
    (frame,) = sending.frames()
    assert [[(group.data, group.redelivered) for group in run] for run in frame.runs] == [
        [(b"\0", True)],
        [(b"\1", False)],
    ]


def test_a_new_receiver_grants_anew() -> None:
    """Credit and processed offsets of a receiver that died do not count for its successor."""
    sending = Sending(processed=True, opened=False)
    sending.open(initial=5)
    sending.offer(1, 9)
    sending.frames()
    sending.update(1, grants=(Grant(1, 5, PLENTY, 5),))
    sending.open(incarnation=8, initial=3)
    assert payloads(sending.frames()) == b"\5\6\7"
    sending.update(1)
    assert sending.update(1, grants=(Grant(1, 3, PLENTY, 2),)) == []
    assert len(sending.update(1, grants=(Grant(1, 3, PLENTY, 3),))) == 1


def test_a_receiver_that_forgot_the_session() -> None:
    """A receiver that lives on but has forgotten what it acknowledged is as a new one."""
    sending = Sending()
    for _ in range(3):
        sending.offer(1)
        sending.frames()
    sending.update(2)
    sending.open(sequence=0)
    frames = sending.frames()
    assert contents(frames) == [(1, [(1, b"\2")])]
    assert groups(frames)[0].redelivered


def test_a_receiver_that_knows_more_than_was_sent() -> None:
    """A session that another process has gone on with is an error; nothing of ours counts as accepted."""
    sending = Sending()
    sending.offer(1)
    sending.frames()
    with pytest.raises(ProtocolError):
        sending.open(sequence=5)
    with pytest.raises(ProtocolError, match="an incarnation of its own"):
        sending.open(incarnation=8, sequence=5)
    assert sending.acknowledged == 0
    sending.open()
    assert contents(sending.frames()) == [(1, [(1, b"\0")])]


# --- limits, moves and the end ------------------------------------------------------------------


def test_what_the_receiver_never_takes_is_given_up() -> None:
    """Messages over the receiver's limit, accepted before it was known, are dropped alone and by name."""
    sending = Sending(opened=False)
    sending.offer_groups(TaskGroup.of(1, [b"a" * 10, b"b" * 101, b"c" * 100]))
    (settled,) = sending.open(max_message_bytes=100)
    assert (settled.task, settled.messages, settled.size_bytes) == (1, 1, 101)
    assert settled.dropped is DropReason.TOO_LARGE
    assert payloads(sending.frames()) == b"a" * 10 + b"c" * 100
    with pytest.raises(MessageTooLargeError, match="over the limit of 100 bytes"):
        sending.window.check([TaskGroup.of(1, [b"x" * 101])])


def test_frames_keep_to_the_receivers_limit() -> None:
    """What was accepted in larger pieces is cut to what the receiver takes in one request."""
    sending = Sending(opened=False)
    sending.offer_groups(TaskGroup.of(1, [b"x" * 10] * 1000))
    sending.open(max_message_bytes=100, max_request_bytes=2100)
    frames = sending.frames()
    assert all(frame.size_bytes <= 1000 for frame in frames)
    assert sum(frame.messages for frame in frames) == 1000


def test_a_task_is_quiet_once_all_is_released() -> None:
    """Neither an acknowledgement nor a part of the release is enough; other tasks do not matter."""
    sending = Sending()
    assert sending.window.quiet(1)
    sending.offer(1, 2)
    sending.offer(2, 1)
    assert not sending.window.quiet(1)
    sending.frames()
    sending.update(1)
    assert not sending.window.quiet(1)
    sending.update(1, grants=(Grant(1, 10, PLENTY, 1),))
    assert not sending.window.quiet(1)
    sending.update(1, grants=(Grant(1, 10, PLENTY, 2),))
    assert sending.window.quiet(1)
    assert not sending.window.quiet(2)


def test_what_is_taken_back_was_never_accepted() -> None:
    """Everything comes back in order with its token; what was under way is marked as redelivered."""
    sending = Sending()
    sending.offer(1, 2, tag="first")
    sending.frames()
    sending.offer(1, 1, tag="second")
    left = sending.window.take_back()
    assert [(len(group), token, group.redelivered) for group, token in left] == [
        (2, "first", True),
        (1, "second", False),
    ]
    assert sending.window.messages == sending.window.size_bytes == 0
    ledger = sending.window.ledger()
    assert (ledger.accepted, ledger.pending) == (0, 0)
