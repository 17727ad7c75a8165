"""The submission queue: counting, free space, and grouping by the event loop."""

from __future__ import annotations

import tuplewire
from tuplewire.connection.submission_queue import MAX_SMALL_BYTES, SubmissionQueue, batches_of
from tuplewire.values.group import TaskGroup

MESSAGE_LIMIT = 1 << 20


def handed_over() -> SubmissionQueue:
    """Return a queue with a single message, a batch of three for two tasks, and another single message."""
    submitted = SubmissionQueue()
    submitted.entries.append((7, 1, b"a"))
    submitted.add([TaskGroup.of(7, [b"b", b"cc"], 1), TaskGroup.of(8, [b"d"])])
    submitted.entries.append((7, 1, b"e"))
    return submitted


def test_counts_are_of_everything_once() -> None:
    """Repeated counts include each entry once, also later ones; the loop removes only counted entries."""
    submitted = handed_over()
    for _ in range(2):
        submitted.update_counts()
        assert (submitted.messages, submitted.size_bytes, submitted.by_flow) == (5, 6, {7: 4, 8: 1})
    assert submitted.submitted_messages == len(submitted.entries) + submitted.extra_messages == 5
    submitted.reset_counts()
    del submitted.entries[:2]
    assert (submitted.messages, submitted.submitted_messages, submitted.extra_messages) == (0, 1, 0)
    submitted.update_counts()
    assert (submitted.messages, submitted.size_bytes, submitted.by_flow) == (1, 1, {7: 1})
    submitted.entries.append((9, None, b"f"))
    submitted.update_counts()
    assert (submitted.messages, submitted.by_flow[9]) == (2, 1)


def test_room_is_for_entries_beside_those_counted() -> None:
    """Space is the minimum of free messages, free bytes and the task's limit; none after a batch."""
    submitted = handed_over()
    submitted.update_counts()
    submitted.publish_space(100, 50 * MAX_SMALL_BYTES, 20, MESSAGE_LIMIT)
    assert (submitted.any_task_entry_limit, submitted.total_entry_limit, submitted.max_small_bytes) == (
        23,
        53,
        MAX_SMALL_BYTES,
    )
    submitted.publish_space(10, 50 * MAX_SMALL_BYTES, 20, 100)
    assert (submitted.any_task_entry_limit, submitted.total_entry_limit, submitted.max_small_bytes) == (
        13,
        13,
        100,
    )
    submitted.add([TaskGroup.of(7, [b"x"] * 100)])  # the next caller must count before it appends
    assert submitted.any_task_entry_limit == submitted.total_entry_limit == 0


def test_messages_alone_become_columns() -> None:
    """Adjacent single messages form a group for each task and source; a batch keeps its place."""
    first, second, third = batches_of(handed_over().entries)
    assert [group.payloads() for group in first] == [[b"a"]]
    assert [group.task for group in second] == [7, 8]
    assert [group.payloads() for group in third] == [[b"e"]]

    singles = [
        (task, source, b"%d" % number) for number in range(3) for task in (7, 8) for source in (1, None)
    ]
    (batch,) = batches_of(singles)
    assert [(group.task, group.source, group.payloads()) for group in batch] == [
        (task, source, [b"0", b"1", b"2"]) for task in (7, 8) for source in (1, None)
    ]
    assert not list(batches_of([]))


def test_a_pass_follows_each_notification() -> None:
    """A loop that was notified makes a pass: senders would not notify it again before that."""
    with tuplewire.local("7") as worker, worker.client() as client:
        client.send(7, b"x")
        client.flush(20)
        sender = client._sender
        assert sender is not None
        submitted = sender.buffer.submitted

        def notified() -> bool:
            submitted.notified_pass = before = submitted.pass_number  # the notification found nothing to send
            sender._next_frame()
            return submitted.pass_number > before

        assert sender.thread.call(notified)
