"""Receives the numbers 0, 1, 2, ... of each task, acknowledges them, and exits after `--count` per task."""

from __future__ import annotations

import argparse
import asyncio
import json

from deploy.foreign.grpclib.connect import keep_up, options
from grpclib.client import Stream

from tuplewire.v1.messaging_grpc import MessagingStub
from tuplewire.v1.messaging_pb2 import (
    Frame,
    Goodbye,
    Progress,
    RecvRequest,
    RecvResponse,
    Subscribe,
    Subscribed,
    TaskCursor,
)

WINDOW_MESSAGES = 100
WINDOW_BYTES = 1024 * 1024


class Consumer:
    """The received messages and cursors, across all streams."""

    def __init__(self, settings: argparse.Namespace) -> None:
        self.settings = settings
        self.worker_incarnation = 0
        self.received: dict[int, int] = dict.fromkeys(settings.tasks, 0)
        """The last received sequence number of each task."""
        self.numbers: dict[int, int] = dict.fromkeys(settings.tasks, 0)
        """The next expected number of each task."""
        self.repeated = 0
        self.problems: list[str] = []

    @property
    def done(self) -> bool:
        """True if all messages were received, or an error was detected."""
        return bool(self.problems) or all(each >= self.settings.count for each in self.numbers.values())

    def cursors(self) -> list[TaskCursor]:
        """Acknowledge all received messages, and grant credit for another window."""
        return [
            TaskCursor(
                task=task,
                acknowledged=sequence,
                received=sequence,
                credit=sequence + WINDOW_MESSAGES,
                credit_bytes=WINDOW_BYTES,
            )
            for task, sequence in self.received.items()
        ]

    def subscribe(self) -> Subscribe:
        """Return the first request of a stream."""
        return Subscribe(
            protocol_version=1,
            topology=self.settings.topology,
            consumer_id=self.settings.id,
            incarnation=self.settings.incarnation,
            tasks=self.cursors(),
            worker_incarnation=self.worker_incarnation,
        )

    def subscribed(self, answer: Subscribed) -> None:
        """Continue at the worker's position; a restarted worker may start from an earlier one."""
        self.worker_incarnation = answer.worker_incarnation
        self.received.update((start.task, start.received) for start in answer.tasks)

    def frame(self, frame: Frame) -> None:
        """Apply the messages of a frame that are new."""
        for group in frame.groups:
            start = 0
            for sequence, length in enumerate(group.lengths, group.first_sequence):
                payload = group.data[start : start + length]
                start += length
                if sequence == self.received[group.task] + 1:
                    self.received[group.task] = sequence
                    self.message(group.task, int(payload))
                elif sequence > self.received[group.task]:
                    self.problems.append(f"task {group.task}: a gap before {sequence}")

    def message(self, task: int, number: int) -> None:
        """Check that a message is the next one of its task."""
        if number == self.numbers[task]:
            self.numbers[task] += 1
        elif number < self.numbers[task]:
            self.repeated += 1  # a worker that failed had already delivered it
        else:
            self.problems.append(f"task {task}: {number} came, not {self.numbers[task]}")


async def carry(consumer: Consumer, stream: Stream[RecvRequest, RecvResponse]) -> None:
    """Subscribe, then receive and acknowledge messages until the stream ends or all messages are received."""
    await stream.send_message(RecvRequest(subscribe=consumer.subscribe()))
    while (response := await stream.recv_message()) is not None:
        if response.HasField("subscribed"):
            consumer.subscribed(response.subscribed)
        elif response.HasField("frame"):
            consumer.frame(response.frame)
        elif not response.HasField("probe"):
            continue
        await stream.send_message(RecvRequest(progress=Progress(tasks=consumer.cursors())))
        if consumer.done:
            await stream.send_message(RecvRequest(goodbye=Goodbye()), end=True)
            return


async def main() -> None:
    """Receive over as many streams as needed, and print a report."""
    settings = options()
    consumer = Consumer(settings)
    connections = await keep_up(
        settings,
        lambda channel: MessagingStub(channel).Recv,
        lambda stream: carry(consumer, stream),
        lambda: consumer.done,
    )
    print(
        json.dumps(
            {
                "received": consumer.numbers,
                "repeated": consumer.repeated,
                "problems": consumer.problems,
                "connections": connections,
            }
        )
    )


asyncio.run(main())
