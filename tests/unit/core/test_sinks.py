"""A worker's sinks: staging, choosing and queueing of messages, and draining."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any, cast

import pytest

from tuplewire.errors import (
    EpochTooLargeError,
    ResourceLimitError,
    StagedDataLostError,
    StaleEpochError,
    UnknownRunError,
    UnknownTaskError,
)
from tuplewire.values.group import TaskGroup
from tuplewire.wire.translate import TaskContent
from tuplewire_service.messaging.base import ReceivedBatch
from tuplewire_service.worker import sinks as sinks_module
from tuplewire_service.worker.assignment import AssignedWorker, Assignment
from tuplewire_service.worker.router import Router
from tuplewire_service.worker.sinks import Sinks
from tuplewire_service.worker.staging import AttemptName
from tuplewire_service.worker.worker_settings import WorkerSettings

SINK = ("me", "s")
TASK = 1


class Queues:
    """A router with queues that the test empties. Tasks 1 to 9 have an owner."""

    wait_until: Any = Router.wait_until

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.table = self
        self.tasks = set(range(1, 10))
        self.received: list[TaskGroup] = []
        self.inbound: Any = None

    def can_route(self, task: int) -> bool:
        return task in self.tasks

    def not_local_error(self, task: int) -> UnknownTaskError:
        return UnknownTaskError(str(task))

    def recv(self, batch: ReceivedBatch) -> None:
        self.received += batch.groups
        self.inbound = batch.inbound

    def consume(self) -> list[bytes]:
        """Remove all messages from the queues and release them; return the payloads."""
        received, self.received = self.received, []
        for each in received:
            self.inbound.release(each.task, len(each), each.size_bytes)
        return [payload for each in received for payload in each.payloads()]


def made(**settings: Any) -> tuple[Sinks, Queues]:
    """Return the sinks of a worker, and its queues, with space for two messages."""
    queues = Queues()
    values = {"receive_queue_messages": 2} | settings
    return Sinks(WorkerSettings(worker_id="w", topology="t", **values), cast("Any", queues)), queues


def name(attempt: str, messages: int, pieces: int = 1) -> AttemptName:
    """Return an attempt's name; its first character is the partition."""
    return AttemptName(int(attempt[0]), attempt, messages, pieces)


async def stage(
    sinks: Sinks, attempt: str, *payloads: bytes, task: int = TASK, epoch: int = 1
) -> AttemptName:
    """Stage messages in groups of one, as one piece; return the attempt's name."""
    staged = name(attempt, len(payloads))
    assert await sinks.stage(SINK, epoch, staged, 0, [TaskGroup.of(task, [each]) for each in payloads]) == ""
    return staged


def publishing(sinks: Sinks) -> bool:
    """Return True if a drain must wait now."""
    return sinks.is_publishing


def staged_here(sinks: Sinks) -> bool:
    """Return True if anything is staged now."""
    return bool(len(sinks.staging))


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make responses return without waiting for changes."""
    monkeypatch.setattr(sinks_module, "_PROGRESS_WAIT_SECONDS", 0.01)


async def test_a_drain_waits_for_messages_without_room() -> None:
    """Waiting messages are published as the consumer frees space, and the drain waits for all."""
    sinks, queues = made()
    assert not publishing(sinks)
    staged = await stage(sinks, "0a", b"1", b"2", b"3", b"4", b"5")
    assert staged_here(sinks)
    assert await sinks.publish(SINK, 1, [staged]) == (5, 3)
    assert await sinks.await_progress(SINK, 1) == (3, [TASK])
    assert not staged_here(sinks)
    sinks._requested_at.clear()  # the caller has disconnected
    assert publishing(sinks)
    assert sinks.publications.unpublished_by_task() == {TASK: 3}
    consumed = []
    while publishing(sinks):
        consumed += queues.consume()
        await asyncio.sleep(0)
    consumed += queues.consume()
    assert consumed == [b"1", b"2", b"3", b"4", b"5"]
    assert sinks.publications.unpublished_by_task() == {}
    assert await sinks.await_progress(SINK, 1) == (0, [])


async def test_a_drain_waits_for_whoever_asks() -> None:
    """A drain waits until the caller is notified that no messages wait."""
    sinks, queues = made()
    staged = await stage(sinks, "0a", b"1", b"2", b"3")
    await sinks.publish(SINK, 1, [staged])
    while sinks.publications.unpublished_by_task():
        queues.consume()
        await asyncio.sleep(0)
    assert publishing(sinks)
    assert (await sinks.await_progress(SINK, 1))[0] == 0
    assert not publishing(sinks)


async def test_an_epoch_that_was_lost_with_a_worker_is_no_success() -> None:
    """A restarted worker reports StagedDataLostError for epochs of its previous incarnation."""
    sinks, _ = made()
    with pytest.raises(StagedDataLostError, match="has started since"):
        await sinks.await_progress(SINK, 1)
    with pytest.raises(StagedDataLostError):
        await sinks.publish(SINK, 1, [name("0a", 1)])
    sinks.begin_run(SINK, 1, "run", [])
    with pytest.raises(StagedDataLostError):
        await sinks.await_progress(SINK, 1)


async def test_an_epoch_is_chosen_once() -> None:
    """Publishing an epoch again chooses nothing, and an earlier epoch is refused."""
    sinks, queues = made()
    staged = await stage(sinks, "0a", b"1", epoch=2)
    assert sinks.check(SINK, 2, [staged], {}) == [TASK]
    assert await sinks.publish(SINK, 2, [staged]) == (1, 0)
    assert await sinks.publish(SINK, 2, [staged]) == (0, 0)
    assert queues.consume() == [b"1"]
    with pytest.raises(StaleEpochError):
        await stage(sinks, "0b", b"x", epoch=1)


async def test_another_run_begins_before_it_publishes() -> None:
    """A new run skips messages that an earlier run published, and drops its staged ones."""
    sinks, queues = made()
    first = await stage(sinks, "0a", b"1")
    with pytest.raises(UnknownRunError, match="'one' has not begun"):
        await sinks.publish(SINK, 1, [first], "one")
    assert sinks.begin_run(SINK, 1, "one", [first])[0] == {}
    assert await sinks.publish(SINK, 1, [first], "one") == (1, 0)
    again, other = await stage(sinks, "0b", b"1"), await stage(sinks, "1b", b"2", task=2)
    left = await stage(sinks, "1a", b"left")
    assert sinks.begin_run(SINK, 1, "two", [again, other])[0] == {TASK: TaskContent(1, 1, ord("1"))}
    with pytest.raises(StagedDataLostError):
        sinks.check(SINK, 1, [left], {})
    assert await sinks.publish(SINK, 1, [again, other], "two") == (1, 0)
    assert queues.consume() == [b"1", b"2"]
    assert not staged_here(sinks)
    assert sinks.status().memory_bytes == 0


ROWS = TaskContent(3, 3, sum(b"123"))


@pytest.mark.parametrize("rows", [[b"1", b"2", b"4"], [b"1", b"2"], [b"1", b"23"], [b"1", b"2", b"3", b""]])
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_other_rows_of_an_epoch_are_refused(rows: list[bytes], *, elsewhere: bool) -> None:
    """An old checkpoint with new rows for an epoch is refused: nothing is published or lost."""
    sinks, queues = made(receive_queue_messages=10)
    known = {TASK: ROWS} if elsewhere else {}
    if not elsewhere:
        await publish_rows(sinks, queues)
    attempt = await stage(sinks, "0b", *rows)
    if not elsewhere:
        with pytest.raises(StaleEpochError, match="with other messages: 3 of 3 bytes"):
            sinks.begin_run(SINK, 1, "two", [attempt])
    with pytest.raises(StaleEpochError, match="choose another checkpointLocation"):
        sinks.check(SINK, 1, [attempt], known)
    with pytest.raises(StaleEpochError, match="Nothing was published"):
        await sinks.publish(SINK, 1, [attempt], remote_contents=known)
    assert queues.consume() == []
    assert staged_here(sinks)


async def test_the_same_rows_in_another_order_are_the_same() -> None:
    """A recomputed query may have the same rows in other partitions and groups."""
    sinks, queues = made(receive_queue_messages=10)
    await publish_rows(sinks, queues)
    attempts = [await stage(sinks, "0b", b"3"), await stage(sinks, "1b", b"2", b"1")]
    got, _ = sinks.begin_run(SINK, 1, "two", attempts)
    assert got == {TASK: ROWS}
    assert await sinks.publish(SINK, 1, attempts, "two") == (0, 0)
    assert queues.consume() == []


async def test_what_is_not_known_of_an_epoch_is_not_compared() -> None:
    """If only the tasks of an epoch are known, its contents are not compared."""
    sinks, _ = made()
    attempt = await stage(sinks, "0b", b"x")
    assert await sinks.publish(SINK, 1, [attempt], remote_contents={TASK: TaskContent()}) == (0, 0)


async def publish_rows(sinks: Sinks, queues: Queues) -> None:
    """Publish ROWS as the run "one", and consume them."""
    first = await stage(sinks, "0a", b"1", b"2", b"3")
    sinks.begin_run(SINK, 1, "one", [first])
    await sinks.publish(SINK, 1, [first], "one")
    assert queues.consume() == [b"1", b"2", b"3"]


async def test_messages_of_a_task_without_a_holder_wait_for_the_next_assignment() -> None:
    """Messages keep their place if their task loses its owner before they are queued."""
    sinks, queues = made()
    with pytest.raises(UnknownTaskError):
        await stage(sinks, "0x", b"x", task=77)
    staged = await stage(sinks, "0a", b"1", b"2")
    queues.tasks.remove(TASK)
    assert await sinks.publish(SINK, 1, [staged]) == (2, 2)
    queues.tasks.add(TASK)
    sinks.on_assignment(None, Assignment(1, "t", (AssignedWorker("w", "w:1", (TASK,)),)))
    assert (await sinks.await_progress(SINK, 1))[0] == 0
    assert queues.consume() == [b"1", b"2"]


async def test_workers_that_have_left_the_assignment_are_told_for_a_while() -> None:
    """Workers that left the assignment are listed, as they may have an epoch, until they return."""
    sinks, _ = made()
    a, b = AssignedWorker("a", "a:1", (1,)), AssignedWorker("b", "b:1", (2,))
    both, one = Assignment(1, "t", (a, b)), Assignment(2, "t", (a,))
    sinks.on_assignment(both, one)
    assert sinks.begin_run(SINK, 1, "run", [])[1] == [b]
    sinks.on_assignment(one, both)
    assert sinks.begin_run(SINK, 1, "run", [])[1] == []


async def test_what_has_no_room_in_memory_goes_through_the_file(tmp_path: Path) -> None:
    """Memory and file keep the order together; an oversize piece is an error with the setting."""
    sinks, queues = made(staging_memory_bytes=3000, staging_disk_bytes=10000, staging_directory=str(tmp_path))
    payloads = [b"%d" % number * 600 for number in range(8)]
    for piece, payload in enumerate(payloads):
        assert await sinks.stage(SINK, 1, name("0a", 8, 8), piece, [TaskGroup.of(TASK, [payload])]) == ""
    assert sinks.status().disk_bytes > 0
    with pytest.raises(EpochTooLargeError, match="staging_disk_bytes"):
        await stage(sinks, "1a", b"x" * 20_000)
    assert (await sinks.publish(SINK, 1, [name("0a", 8, 8)]))[0] == 8
    sinks._requested_at.clear()
    consumed = []
    while publishing(sinks) or queues.received:
        consumed += queues.consume()
        await asyncio.sleep(0.001)
    assert consumed == payloads
    assert (sinks.status().memory_bytes, sinks.status().disk_bytes) == (0, 0)


async def test_a_file_that_cannot_be_written_takes_no_room(tmp_path: Path) -> None:
    """A failed write returns its reserved disk space."""
    sinks, _ = made(
        staging_memory_bytes=1500, staging_disk_bytes=10000, staging_directory=str(tmp_path / "gone")
    )
    await sinks.stage(SINK, 1, name("0a", 1), 0, [TaskGroup.of(TASK, [b"x" * 900])])
    with pytest.raises(ResourceLimitError):
        await sinks.stage(SINK, 1, name("0a", 2), 1, [TaskGroup.of(TASK, [b"y" * 900])])
    assert sinks.status().disk_bytes == 0


async def test_a_cancelled_request_whose_write_fails_is_no_defect(tmp_path: Path) -> None:
    """If a request is cancelled during its write, an error of the write is not reported to the loop."""
    sinks, _ = made(
        staging_memory_bytes=1500, staging_disk_bytes=10000, staging_directory=str(tmp_path / "gone")
    )
    defects: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: defects.append(context))
    await sinks.stage(SINK, 1, name("0a", 1), 0, [TaskGroup.of(TASK, [b"x" * 900])])
    groups = [TaskGroup.of(TASK, [b"y" * 900])]
    request = asyncio.create_task(sinks.stage(SINK, 1, name("0a", 2), 1, groups))
    await asyncio.sleep(0)
    request.cancel()
    while sinks.status().disk_bytes:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await asyncio.wait([request])
    assert request.cancelled()
    del request  # its frames refer to the task of the write
    await asyncio.sleep(0.01)
    gc.collect()  # reports the errors of tasks that were not awaited
    loop.set_exception_handler(None)
    assert defects == []


async def test_a_full_staging_area_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A full staging area is logged with sink and epoch, and reported to the writer."""
    sinks, _ = made(staging_memory_bytes=2000, staging_disk_bytes=1)
    groups = [TaskGroup.of(TASK, [bytes(700)])]
    assert await sinks.stage(("me", "other"), 1, name("0a", 1), 0, groups) == ""
    answer = await sinks.stage(SINK, 1, name("0a", 1), 0, groups)
    assert answer.startswith("space for staged messages: ")

    assert any(line.startswith("staging.full sink=s epoch=1 partition=") for line in caplog.messages)


async def test_progress_waits_for_the_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A response is sent when the last message has space, not before."""
    monkeypatch.setattr(sinks_module, "_PROGRESS_WAIT_SECONDS", 30.0)

    sinks, queues = made()
    staged = await stage(sinks, "0a", *(bytes([number]) for number in range(8)))
    await sinks.publish(SINK, 1, [staged])
    asking = asyncio.create_task(sinks.await_progress(SINK, 1))
    await asyncio.sleep(0)
    assert not asking.done()
    while not asking.done():
        queues.consume()
        queues.changed.set()
        await asyncio.sleep(0.01)
    assert asking.result() == (0, [])
