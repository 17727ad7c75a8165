"""Rejected messages: a consumer's session and a worker's queues, with broken streams between them."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from typing import Any

from helpers.cursors import answer_of, cursor_of
from helpers.queues import Program, RejectionsWithoutTimers, queues_of, subscribe
from hypothesis import given, settings
from hypothesis import strategies as st

from tuplewire.session.consume import ArrivedBatch, ConsumeSession, Delivery, RejectedMessage
from tuplewire.session.ledger import DropReason, Ledger
from tuplewire.settings.config import MIB
from tuplewire.values.dead_letters import DecodedDeadLetter, read_key_and_headers, rejections_of
from tuplewire.values.group import TaskGroup
from tuplewire.values.message import TaskMessage
from tuplewire_service.worker.delivery import AckedGroup
from tuplewire_service.worker.queue_subscription import QueueConsumers, QueueSubscription

TASKS = (1, 2)
DEAD = 9
LIMIT = 3
PREFETCH = 4
ACTIONS = ["send", "take", "consume", "tell", "send_again", "cut", "probe", *["hear", "listen"] * 2]


class Sender(Program):
    """A program's session: it counts released messages and bytes of each task."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: Counter[int] = Counter()
        self.size_bytes: Counter[int] = Counter()

    def release(self, task: int, messages: int, size_bytes: int) -> None:
        self.messages[task] += messages
        self.size_bytes[task] += size_bytes


class Scene:
    """A worker, a consumer, and the data in flight between them."""

    def __init__(self, *, wait: bool, doomed: set[int], faulty: Counter[int], most: int) -> None:
        self.wait, self.doomed, self.faulty = wait, doomed, faulty
        self.sender, self.ledger = Sender(), Ledger()
        self.shell = RejectionsWithoutTimers(LIMIT, DEAD, most)
        self.queues = queues_of([*TASKS, DEAD])
        self.queues.on_acknowledged = self._done
        self.consumers = QueueConsumers(7, self.queues, self.shell)
        self.session = ConsumeSession(TASKS, PREFETCH, MIB)
        self.subscription: QueueSubscription | None = None
        self.down: deque[tuple[str, Any]] = deque()
        self.up: deque[Any] = deque()
        self.buffer: deque[ArrivedBatch] = deque()
        self.sent: dict[int, list[int]] = defaultdict(list)
        self.processed: dict[int, list[int]] = defaultdict(list)
        self.rejections: Counter[int] = Counter()
        self.most = most

    def _done(self, task: int, done: Sequence[AckedGroup]) -> None:
        for each in done:
            if not each.rejected:
                self.ledger.acknowledged += each.messages
            each.inbound.release(task, each.messages, each.size_bytes)

    def send(self) -> None:
        for task in TASKS:
            number = 1 + sum(map(len, self.sent.values()))
            self.sent[task].append(number)
            self._put(TaskGroup.of(task, [b"%d" % number]), self.sender)

    def _put(self, group: TaskGroup, inbound: Any) -> None:
        self.ledger.accepted += len(group)
        self.queues.put(group, inbound)

    def send_again(self) -> None:
        """Send copies that are due, and check the queues that were held."""
        for copy in self.shell.take_due(time.monotonic(), sys.maxsize):
            if copy.drop_reason is None:
                self.ledger.acknowledged += 1
            else:
                self.ledger.dropped[copy.drop_reason] += 1
            self._put(copy.group, self.shell)
        self.shell.retry_blocked()

    def take(self) -> None:
        """Write like a worker: answers first."""
        if self.subscription is not None:
            if answers := list(self.subscription.rejection_answers.values()):
                self.subscription.rejection_answers.clear()
                self.down.append(("answer", answers))
            for _ in range(2):
                if taken := self.subscription.take(1):
                    self.down.append(("frame", taken))

    def listen(self) -> None:
        if self.up and self.subscription is not None:
            self.subscription.apply_progress(self.up.popleft())

    def probe(self) -> None:
        if self.subscription is not None:
            self.down.append(("probe", None))

    def cut(self) -> None:
        """Break the stream, and open another one."""
        self.down.clear()
        self.up.clear()
        if self.subscription is not None:
            self.subscription.close()
        incarnation = self.session.worker_incarnation
        subscription = subscribe(
            self.consumers, "c", self.session.take_all_cursors(), worker_incarnation=incarnation
        )
        self.subscription = subscription
        self.session.on_connected(7, subscription.positions)

    def hear(self) -> None:
        if not self.down:
            return
        kind, what = self.down.popleft()
        if kind == "answer":
            self.session.apply_answers(what)
        elif kind == "probe":
            self.session.mark_all_changed()
        else:
            arrived = self.session.receive(what)
            if arrived.deliveries:
                self.buffer.append(arrived)

    def consume(self) -> None:
        if not self.buffer:
            return
        arrived = self.buffer.popleft()
        rejected: list[RejectedMessage] = []
        void: set[int] = set()
        index = 0
        for group in arrived.groups:
            for single in group.cut(range(len(group) + 1)):
                number = int(single.data)
                assert arrived.generation >= self.session._tasks[group.task].generation
                if group.task not in void:
                    assert rejections_of(read_key_and_headers(single)[1]) == self.rejections[number]
                    if number in self.doomed or self.rejections[number] < self.faulty[number]:
                        self.rejections[number] += 1
                        rejected.append(RejectedMessage(index, 0.0, "no", self.wait))
                        if self.wait:
                            void.add(group.task)
                    else:
                        self.processed[group.task].append(number)
                index += 1
        self.session.acknowledge(arrived, rejected)
        kept = (each.without(self.session.tasks_awaiting_answer()) for each in self.buffer)
        self.buffer = deque(each for each in kept if each.deliveries)

    def tell(self) -> None:
        if self.subscription is not None and (cursors := self.session.take_changed_cursors()):
            self.up.append(cursors)

    def adds_up(self) -> None:
        pending = self.queues.pending_messages + len(self.shell.waiting_copies)
        assert self.ledger.snapshot(pending).balanced, str(self.ledger.snapshot(pending))
        for state in self.session._tasks.values():
            assert len(state.rejections) <= PREFETCH
        # Each copy over the limit delays the release of one message to its sender.
        for usage in self.shell._usage_by_task.values():
            assert usage.messages < self.most + len(usage.deferred_releases)
            assert usage.is_full or not usage.deferred_releases

    def progress(self) -> tuple[Any, ...]:
        """Return the counts that change while anything moves."""
        ledger = self.ledger
        counts = (ledger.accepted, ledger.acknowledged, *ledger.dropped.values())
        on_the_way = (len(self.down), len(self.up), len(self.buffer), len(self.shell.waiting_copies))
        done = (sum(map(len, self.processed.values())), sum(self.rejections.values()))
        return *counts, *on_the_way, *done, sum(self.sender.messages.values())

    def read_letters(self) -> None:
        reader = subscribe(self.consumers, "reader", [cursor_of(DEAD, 0, 0, 100, MIB)])
        for delivery in reader.take(MIB):
            last = delivery.first_sequence + len(delivery.group) - 1
            reader.apply_progress([cursor_of(DEAD, last, last, 100, MIB)])

    def letters(self) -> dict[int, list[int]]:
        """Return the numbers of the dead letters by their original task."""
        found = defaultdict(list)
        for each in self.queues.by_task[DEAD].log.iter_entries():
            for single in each.group.cut(range(len(each.group) + 1)):
                message = TaskMessage.from_checked(DEAD, single.data, single.header_data)
                letter = DecodedDeadLetter.read(message)
                assert letter is not None
                assert (letter.count, letter.reason) == (LIMIT, "no")
                found[letter.task].append(int(letter.message.message))
        return found


@settings(max_examples=settings().max_examples * 3 // 2, deadline=None)
@given(
    actions=st.lists(st.sampled_from(ACTIONS), min_size=50, max_size=200),
    wait=st.booleans(),
    doomed=st.sets(st.integers(1, 30), max_size=4),
    faulty=st.dictionaries(st.integers(1, 30), st.integers(1, LIMIT - 1), min_size=4, max_size=12),
    most=st.sampled_from([2, 100]),
)
def test_rejected_messages_come_again_or_become_letters(
    *, actions: list[str], wait: bool, doomed: set[int], faulty: dict[int, int], most: int
) -> None:
    """Each message is processed once or a dead letter. Without space, rejected ones are released later."""
    scene = Scene(wait=wait, doomed=doomed, faulty=Counter(faulty), most=most)
    scene.send()
    scene.cut()
    for action in actions:
        getattr(scene, action)()
        scene.adds_up()
    scene.cut()
    total = sum(map(len, scene.sent.values()))
    standing = 0
    while standing < 3:
        before = scene.progress()
        for action in ("send_again", "take", "hear", "hear", "consume", "tell", "listen"):
            getattr(scene, action)()
            scene.adds_up()
        standing = standing + 1 if scene.progress() == before else 0
    letters = scene.letters()
    full = any(usage.is_full for usage in scene.shell._usage_by_task.values())
    waiting = sum(1 for times in scene.rejections.values() if times) if full else 0
    assert sum(scene.sender.messages.values()) >= total - waiting
    scene.read_letters()
    for task in TASKS:
        done = scene.processed[task] + letters[task]
        assert sorted(done) == scene.sent[task]
        assert set(letters[task]) == doomed & set(scene.sent[task])
        unharmed = [each for each in scene.processed[task] if wait or not scene.rejections[each]]
        assert unharmed == sorted(unharmed)
        assert letters[task] == sorted(letters[task]) or not wait
        assert scene.sender.messages[task] == len(scene.sent[task])
        assert scene.sender.size_bytes[task] == sum(len(str(each)) for each in scene.sent[task])
    assert scene.ledger.dropped[DropReason.DEAD_LETTERED] == len(doomed & set(range(1, total + 1)))


def test_an_answer_to_an_earlier_rejection_is_not_taken_for_the_later_one() -> None:
    """A consumer waits for the answer with its number; an earlier answer may be sent twice."""
    session = ConsumeSession([1], PREFETCH, MIB)
    session.on_connected(7, [(1, 0)])
    for number in (1, 2):
        arrived = session.receive([Delivery(1, TaskGroup.of(1, [b"a"]))])
        session.acknowledge(arrived, [RejectedMessage(0, 0.0, "no", blocks_task=True)])
        assert session.tasks_awaiting_answer() == {1}
        session.apply_answers([answer_of(1, number - 1, 3)])
        assert session.tasks_awaiting_answer() == {1}
        session.apply_answers([answer_of(1, number, 0)])
        assert not session.tasks_awaiting_answer()
