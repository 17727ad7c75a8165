"""A session as a state machine: sender, receiver, queues and consumer, and the model to compare them with."""

# ruff: noqa: D401 - a rule's docstring describes an event

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from helpers.cursors import credit_of
from helpers.pieces import CountedSteps
from helpers.session_parts import (
    HEAD,
    SETTINGS,
    SOURCES,
    TASKS,
    WINDOWS,
    Batch,
    Consumer,
    Link,
    Message,
    Pair,
    Worker,
    group_of,
    messages_in,
)
from tuplewire.errors import TaskNotLocalError, UnknownTaskError
from tuplewire.session.consume import Delivery
from tuplewire.session.ledger import DropReason, SettledMessages
from tuplewire.session.send import SendSession
from tuplewire.session.shares import Amount
from tuplewire.settings.config import AckMode, Overflow
from tuplewire.values.group import TaskGroup
from tuplewire.wire import messaging_pb2 as pb
from tuplewire.wire.codec import closed_flows_of, decode, encode_frame, groups_of
from tuplewire.wire.opaque_pb2 import OpaqueFrame


class SessionMachine(CountedSteps):
    """A session, the events that can happen to it, and a model of a perfect session."""

    @initialize(
        processed=st.booleans(),
        overflow=st.sampled_from([Overflow.BLOCK, Overflow.DROP_OLDEST]),
        window=st.sampled_from(WINDOWS),
    )
    def start(self, processed: bool, overflow: Overflow, window: Amount) -> None:  # noqa: FBT001 - drawn
        """Start the three processes."""
        self.processed_mode = processed
        self.drops_oldest = overflow is Overflow.DROP_OLDEST
        mode = AckMode.PROCESSED if processed else AckMode.QUEUED
        self.session = SendSession(replace(SETTINGS, ack_mode=mode, overflow=overflow))
        self.worker = Worker(1, window, processed=processed)
        self.consumer, self.other = Consumer(1), Consumer(2)
        self.consumers = 2
        self.sending, self.receiving = Link(), Link()
        self.closed_tasks: set[int] = set()
        self.heard: list[pb.Ack] = []
        self.update_lost = False
        # The model.
        self.offered: dict[Pair, int] = defaultdict(int)
        self.pending: dict[Message, int] = {}
        self.batch_of: dict[Message, Batch] = {}
        self.written: set[Message] = set()
        self.taken: set[Message] = set()
        self.done: set[Message] = set()
        self.gone: set[Message] = set()
        self.seen: set[Message] = set()
        self.acknowledged = self.dropped = 0
        self.lost = self.told_lost = 0
        self.connect(1)
        self.subscribe(1)

    @rule(
        source=st.sampled_from(SOURCES),
        counts=st.dictionaries(
            st.sampled_from(TASKS), st.integers(1, 5) | st.integers(1, 25), min_size=1, max_size=3
        ),
        padding=st.integers(0, SETTINGS.max_message_bytes - HEAD.size),
        headed=st.booleans(),
    )
    def offer(
        self,
        source: int | None,
        counts: dict[int, int],
        padding: int,
        headed: bool,  # noqa: FBT001 - drawn
    ) -> None:
        """A batch is accepted exactly if it fits, or dropping older messages frees enough space."""
        batch = Batch(sum(self.offered.values()), {}, {})
        groups = []
        for task, count in counts.items():
            first = self.offered[source, task]
            messages = [(source, task, first + number) for number in range(count)]
            group = group_of(messages, padding, headed=headed)
            batch.open[task] = messages
            batch.sizes |= dict(zip(messages, group.message_sizes(), strict=True))
            groups.append(group)
        in_the_way = self._in_the_way(batch)
        taken = in_the_way is not None and (not in_the_way or self.drops_oldest)
        assert self.session.offer(groups, batch) == taken
        self._give_way(in_the_way if taken and in_the_way else [])
        if taken:
            self.pending |= batch.sizes
            self.batch_of |= dict.fromkeys(batch.sizes, batch)
            for task, count in counts.items():
                self.offered[source, task] += count

    def _in_the_way(self, batch: Batch) -> list[Message] | None:
        """Return the messages to drop for a batch, the oldest unwritten ones, or None if they are too few."""
        waiting = sorted(
            (self.batch_of[message].number, message[1], message[2], message)
            for message in self.pending
            if message not in self.written
        )
        oldest = [message for *_, message in waiting]
        gone: list[Message] = []
        for task, messages in batch.open.items():
            held = sum(message[1] == task for message in self.pending)
            too_many = min(held, max(0, held + len(messages) - SETTINGS.max_pending_task_messages))
            gone += [message for message in oldest if message[1] == task][:too_many]
            if sum(message[1] == task for message in gone) < too_many:
                return None
        oldest = [message for message in oldest if message not in gone]
        held, size = len(self.pending), sum(self.pending.values())
        new_size = sum(batch.sizes.values())
        too_many = min(held, max(0, held + len(batch.sizes) - SETTINGS.max_pending_messages))
        too_large = min(size, max(0, size + new_size - SETTINGS.max_pending_bytes))
        while len(gone) < too_many or sum(self.pending[message] for message in gone) < too_large:
            if not oldest:
                return None
            gone.append(oldest.pop(0))
        return gone

    def _give_way(self, gone: list[Message]) -> None:
        """The session dropped and reported exactly these messages."""
        told: Counter[tuple[int, int]] = Counter()
        told_bytes = 0
        for each in self.session.take_settled():
            assert each.drop_reason is DropReason.OVERFLOW
            told[each.inbound.number, each.task] += each.messages
            told_bytes += each.size_bytes
        assert told == Counter((self.batch_of[message].number, message[1]) for message in gone)
        assert told_bytes == sum(self.pending[message] for message in gone)
        self.dropped += len(gone)
        self.gone.update(gone)
        for message in gone:
            self.batch_of[message].open[message[1]].remove(message)
            del self.pending[message]

    def write(self, limit: int) -> None:
        """The sender writes frames."""
        for _ in range(limit if self.sending.connected else 0):
            frame = self.session.next_frame()
            if frame is None:
                return
            assert frame.size_bytes <= SETTINGS.max_frame_bytes
            for run in frame.runs:
                for group in run:
                    self.written.update(messages_in(group))
            self.sending.up.append(encode_frame(frame.sequence, frame.runs, closed_flows=frame.closed_flows))

    def close_unused(self, limit: int) -> None:
        """Both sides close unused flows; the counts start again with the next message."""
        for _ in range(min(limit, 2)):
            self.session.close_unused()

    def hear(self, limit: int) -> None:
        """The sender receives some updates of the receiver."""
        while self.sending.down and limit:
            limit -= 1
            update = pb.Ack.FromString(self.sending.down.popleft())
            if self.session.has_gap_before(update):
                assert self.update_lost, "nothing was lost"
                continue  # it sends a probe, sooner or later
            self.heard.append(update)
            self.session.apply_ack(update)
            self._settle(self.session.take_settled())

    def hear_again(self, limit: int) -> None:
        """A repeated update settles nothing, however late it is received."""
        for update in reversed(self.heard[-limit:]):
            self.session.apply_ack(update)
            assert self.session.take_settled() == []

    def miss(self, limit: int) -> None:
        """Updates are lost, and their refusals with them."""
        for _ in range(min(limit, len(self.sending.down))):
            self.sending.down.popleft()
            self.update_lost = True

    def probe(self, _: int) -> None:
        """The sender requests a complete update, which changes nothing that it already knows."""
        if self.sending.connected:
            self.worker.session.request_full_state(self.session.acked_frame)

    def _settle(self, settled: Iterable[SettledMessages]) -> None:
        for each in settled:
            batch: Batch = each.inbound
            refused = self.worker.refused
            candidates = [
                message
                for message in batch.open[each.task]
                if (message in refused) == (each.drop_reason is not None)
            ]
            messages = candidates[: each.messages]
            assert len(messages) == each.messages, "more settled than there was to settle"
            assert sum(batch.sizes[message] for message in messages) == each.size_bytes
            for message in messages:
                batch.open[each.task].remove(message)
                del self.pending[message]
            if each.drop_reason is not None:
                self.dropped += each.messages
                self.gone.update(messages)
                continue
            self.acknowledged += each.messages
            assert set(messages) <= (self.done if self.processed_mode else self.taken), (
                "acknowledged too soon"
            )

    def connect(self, limit: int) -> None:
        """The sender reconnects; the first welcomes may be lost in transit."""
        if self.sending.connected:
            return
        worker = self.worker
        for _ in range(limit):
            update = worker.session.build_full_state(self.session.acked_frame)
        initial = worker.session.credit.initial_share
        welcome = pb.Welcome(
            session_id=worker.incarnation,
            initial_credit=credit_of(0, initial.messages, initial.size_bytes, 0),
            accepted_sequence=update.sequence,
            credits=update.credits,
            refusals=update.refusals,
            max_message_bytes=2**30,
            max_request_bytes=2**31,
        )
        self.session.on_connected(welcome)
        self._settle(self.session.take_settled())
        self.told_lost = self.session.possibly_lost
        assert self.told_lost >= self.lost, "more died than is told"
        assert not (self.processed_mode and self.told_lost), "what comes again did not die"
        self.heard, self.update_lost = [], False
        self.sending.connected = True

    def cut(self, limit: int) -> None:
        """The stream breaks while both sides write; some of the data still arrives."""
        self.write(4)
        self.arrive(limit)
        self.answer(1)
        self.hear(limit - 1)
        self.sending.cut()

    def arrive(self, limit: int) -> None:
        """Frames arrive; an exception here means that the sender broke the protocol."""
        worker = self.worker
        while self.sending.up and limit:
            limit -= 1
            frame = decode(pb.SendRequest, self.sending.up.popleft())
            assert isinstance(frame, OpaqueFrame)
            groups = worker.session.accept(frame.sequence, groups_of(frame), (), closed_flows_of(frame))
            assert groups is not None, "a frame came twice on one stream"
            for group in groups:
                self._accept(frame.sequence, group)

    def _accept(self, sequence: int, group: TaskGroup) -> None:
        worker = self.worker
        messages = messages_in(group)
        for source, task, number in messages:
            expected = worker.next_number.get((source, task))
            if expected is None:
                # Everything before it is settled, or the receiver would have received it first.
                assert not any((source, task, earlier) in self.pending for earlier in range(number))
            else:
                # Messages that the receiver's predecessor refused are not sent again.
                between = {(source, task, each) for each in range(expected, number)}
                assert number >= expected, "doubled, or out of order"
                assert between <= self.gone, "a message is missing"
            worker.next_number[source, task] = number + 1
        assert group.redelivered or not self.taken.intersection(messages), "repeated without a mark"
        self.taken.update(messages)
        if group.task in self.closed_tasks:
            worker.refused.update(messages)
            error = (
                UnknownTaskError("nobody has it") if group.task == 1 else TaskNotLocalError("moved", "w2:1")
            )
            worker.session.refuse(sequence, group, error)
        else:
            worker.logs[group.task].append(group, worker)

    def answer(self, _: int) -> None:
        """The receiver sends an update if its state has changed."""
        update = self.worker.session.next_ack() if self.sending.connected else None
        if update is not None:
            self.sending.down.append(update.SerializeToString())

    def open_or_close(self, task: int) -> None:
        """The receiver starts or stops refusing a task."""
        self.closed_tasks ^= {task}

    def resize(self, number: int) -> None:
        """The session's share of the queues changes."""
        self.worker.shares.capacity = WINDOWS[number]
        self.worker.shares.set_session_count(1)

    def crowd(self, number: int) -> None:
        """Disconnected senders leave a task's queue nearly full, or their messages are released."""
        self._crowd(TASKS[number % len(TASKS)], number)

    def _crowd(self, task: int, messages: int) -> None:
        worker = self.worker
        left = worker.left.pop(task, None)
        if left is None:
            left = worker.left[task] = Amount(messages, 1)
            worker.shares.add_orphaned(task, left.messages, left.size_bytes)
        elif worker.shares.on_released(task, left.messages, left.size_bytes):
            worker.session.credit.on_space_freed(task)

    def kill_worker(self, limit: int) -> None:
        """The receiver is killed with all its messages, and restarts."""
        self.cut(limit)
        self.cut_consumer(limit)
        old = self.worker
        left = [group for log in old.logs.values() for group, _ in log.remove_all()]
        self.lost += sum(message not in self.pending for group in left for message in messages_in(group))
        self.worker = Worker(old.incarnation + 1, old.shares.capacity, processed=self.processed_mode)
        self.heard = []

    def subscribe(self, limit: int) -> None:
        """A consumer connects or reconnects, and acknowledges some messages at the same time."""
        if self.receiving.connected:
            return
        worker, consumer = self.worker, self.consumer
        resumes = (
            worker.consumer_id == consumer.id and consumer.session.worker_incarnation == worker.incarnation
        )
        worker.consumer_id = consumer.id
        cursors = consumer.session.take_all_cursors()
        self.acknowledge(limit - 1)
        for cursor in cursors:
            log = worker.logs[cursor.task]
            if resumes:
                self._progress(cursor)
                log.rewind(cursor.received_sequence)
                worker.cursors[cursor.task] = (cursor.credit_sequence, cursor.credit_bytes)
            else:
                log.rewind()
                credit = log.acknowledged + cursor.credit_sequence - cursor.acknowledged_sequence
                worker.cursors[cursor.task] = (credit, cursor.credit_bytes)
        if not resumes:
            consumer.last_seen.clear()
        consumer.session.on_connected(
            worker.incarnation, [(task, log.last_taken) for task, log in worker.logs.items()]
        )
        self.receiving.connected = True
        self._say_progress()

    def fetch(self, limit: int) -> None:
        """The worker delivers as many messages as the consumer has credit for."""
        for task, log in self.worker.logs.items() if self.receiving.connected else ():
            deliveries = log.take(*self.worker.cursors[task], limit * 40)
            if deliveries:
                runs = [[delivery.group] for delivery in deliveries]
                firsts = [delivery.first_sequence for delivery in deliveries]
                self.receiving.down.append(encode_frame(1, runs, firsts))

    def see(self, limit: int) -> None:
        """Messages arrive at the consumer, once each and in order."""
        consumer = self.consumer
        while self.receiving.down and limit:
            limit -= 1
            frame = decode(pb.RecvResponse, self.receiving.down.popleft())
            assert isinstance(frame, OpaqueFrame)
            firsts = [group.first_sequence for group in frame.groups]
            arrived = consumer.session.receive(map(Delivery, firsts, groups_of(frame)))
            consumer.held.append(arrived)
            for group in arrived.groups:
                messages = messages_in(group)
                assert group.redelivered or not self.seen.intersection(messages), "repeated without a mark"
                self.seen.update(messages)
                for source, task, number in messages:
                    last = consumer.last_seen.get((source, task))
                    if last is not None:
                        between = {(source, task, each) for each in range(last + 1, number)}
                        assert number > last, "doubled, or out of order"
                        assert between <= self.worker.refused | self.gone, "a message is missing"
                    consumer.last_seen[source, task] = number

    def acknowledge(self, limit: int) -> None:
        """The consumer acknowledges some batches, and reports it if it is connected."""
        consumer = self.consumer
        while consumer.held and limit:
            limit -= 1
            arrived = consumer.held.popleft()
            consumer.session.acknowledge(arrived)
            for group in arrived.groups:
                self.done.update(messages_in(group))
        self._say_progress()

    def _say_progress(self) -> None:
        if self.receiving.connected:
            cursors = self.consumer.session.take_changed_cursors()
            self.receiving.up.extend(each.SerializeToString() for each in cursors)

    def hear_progress(self, limit: int) -> None:
        """The worker applies the consumer's progress; a repeated report changes nothing."""
        while self.receiving.up and limit:
            limit -= 1
            cursor = pb.TaskCursor.FromString(self.receiving.up.popleft())
            for _ in range(2):
                self._progress(cursor)
                credit, _ = self.worker.cursors[cursor.task]
                self.worker.cursors[cursor.task] = (max(credit, cursor.credit_sequence), cursor.credit_bytes)

    def _progress(self, cursor: pb.TaskCursor) -> None:
        log, received = self.worker.logs[cursor.task], cursor.received_sequence
        for done in log.apply_progress(cursor.acknowledged_sequence, received):
            assert done.inbound is self.worker
            self.worker.session.credit.on_released(cursor.task, done.messages, done.size_bytes)

    def cut_consumer(self, limit: int) -> None:
        """The consumer's stream breaks while both sides write; some of the data still arrives."""
        self.fetch(4)
        self.see(limit)
        self.acknowledge(1)
        self.hear_progress(limit - 1)
        self.receiving.cut()

    def kill_consumer(self, limit: int) -> None:
        """The consumer dies; a new one replaces it."""
        self.cut_consumer(limit)
        self.consumers += 1
        self.consumer = Consumer(self.consumers)

    def change_consumers(self, limit: int) -> None:
        """Another consumer takes over the tasks; this one keeps running, and may take them back."""
        self.cut_consumer(limit)
        self.consumer, self.other = self.other, self.consumer
