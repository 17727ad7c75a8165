"""Receives the numbers 0, 1, 2, ... of each task, acknowledges them, and ends when so many have come."""

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
    """What has come, whatever stream it came over."""

    def __init__(self, settings: argparse.Namespace) -> None:
        self.settings = settings
        self.worker_incarnation = 0
        self.received: dict[int, int] = dict.fromkeys(settings.tasks, 0)
        """Of each task the last sequence that has come."""
        self.numbers: dict[int, int] = dict.fromkeys(settings.tasks, 0)
        """Of each task the number that comes next."""
        self.repeated = 0
        self.problems: list[str] = []

    @property
    def done(self) -> bool:
        """Whether everything has come, or something is wrong."""
        return bool(self.problems) or all(each >= self.settings.count for each in self.numbers.values())

    def cursors(self) -> list[TaskCursor]:
        """Acknowledge everything that has come, and make room for as much again."""
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
        """Return what is first on every stream."""
        return Subscribe(
            protocol_version=1,
            topology=self.settings.topology,
            consumer_id=self.settings.id,
            incarnation=self.settings.incarnation,
            tasks=self.cursors(),
            worker_incarnation=self.worker_incarnation,
        )

    def subscribed(self, answer: Subscribed) -> None:
        """Go on where the worker says: after what has come, unless it has no memory of that."""
        self.worker_incarnation = answer.worker_incarnation
        self.received.update((start.task, start.received) for start in answer.tasks)

    def frame(self, frame: Frame) -> None:
        """Take in what is new."""
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
        """Check that a message is the next one."""
        if number == self.numbers[task]:
            self.numbers[task] += 1
        elif number < self.numbers[task]:
            self.repeated += 1  # a worker that has died had it
        else:
            self.problems.append(f"task {task}: {number} came, not {self.numbers[task]}")


async def carry(consumer: Consumer, stream: Stream[RecvRequest, RecvResponse]) -> None:
    """Subscribe, then take messages in and acknowledge them, until the stream ends or all has come."""
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
    """Receive over as many streams as it takes, and print what has come."""
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
