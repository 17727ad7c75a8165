"""A subscription that finds the workers of its tasks and follows them, with workers in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress

import pytest

from tuplewire.connection import consuming_end
from tuplewire.connection.grpc_channel import WorkerConnections
from tuplewire.connection.memory_stream import MemoryClientStream, MemoryStream
from tuplewire.connection.receiver import Receiver
from tuplewire.connection.reconnecting_session import Identity
from tuplewire.connection.stream import ClientStream, StreamBroken, StreamOpener
from tuplewire.errors import TaskNotLocalError, UnknownTaskError, UnreachableError
from tuplewire.identity.credentials import Credentials
from tuplewire.session.consume import Delivery
from tuplewire.settings.config import SessionSettings
from tuplewire.values.group import TaskGroup
from tuplewire.wire import control_pb2
from tuplewire.wire import messaging_pb2 as pb

SETTINGS = SessionSettings.of(backoff_initial_seconds=0.001, backoff_max_seconds=0.01)


class Worker:
    """A worker that accepts subscriptions to its tasks, and has no messages."""

    def __init__(self, name: str, *tasks: int) -> None:
        self.name = name
        self.tasks = set(tasks)
        self.subscribed: list[pb.Subscribe] = []
        """The accepted subscriptions, in order."""
        self.answers = asyncio.Event()
        """Set while the worker answers what it has accepted."""
        self.answers.set()
        self._connected: list[MemoryStream] = []

    @asynccontextmanager
    async def open(self, _: str) -> AsyncIterator[ClientStream]:
        near, far = MemoryClientStream(), MemoryStream()
        near.connect(far)
        serving = asyncio.create_task(self._serve(far))
        try:
            yield near
        finally:
            near.disconnect(UnreachableError("closed"))
            serving.cancel()

    async def _serve(self, stream: MemoryStream) -> None:
        with suppress(StreamBroken):
            subscribe = pb.RecvRequest.FromString(await stream.read()).subscribe
            if not {cursor.task for cursor in subscribe.tasks} <= self.tasks:
                stream.disconnect(TaskNotLocalError(f"not at {self.name}"))
                return
            self.subscribed.append(subscribe)
            await self.answers.wait()
            answer = pb.Subscribed(worker_id=self.name, worker_incarnation=1, tasks=subscribe.tasks)
            await stream.write(pb.RecvResponse(subscribed=answer).SerializeToString())
            self._connected.append(stream)
            while await stream.read() is not None:
                pass
            stream.finish()  # a consumer that closes waits for it

    async def move(self, *tasks: int) -> None:
        """Give tasks up, and report this to the consumer."""
        self.tasks -= set(tasks)
        await self._connected[-1].write(pb.RecvResponse(moved=pb.Moved(tasks=tasks)).SerializeToString())

    def cut(self) -> None:
        for stream in self._connected:
            stream.disconnect(UnreachableError("cut"))

    @property
    def last(self) -> list[int]:
        return [cursor.task for subscribe in self.subscribed[-1:] for cursor in subscribe.tasks]


class Cluster(WorkerConnections):
    """The workers, by address, and their assignment. The address of worker `a` is `a:1`."""

    def __init__(self, *workers: Worker) -> None:
        super().__init__(SETTINGS, Credentials())
        self.workers = {f"{each.name}:1": each for each in workers}
        self.version = 1
        self.requests = 0
        self.assigned = {each.name: set(each.tasks) for each in workers}

    def stream_opener(self, address: str) -> StreamOpener:
        return self.workers[address].open

    async def assignment(self, address: str) -> control_pb2.GetAssignmentResponse:
        self.requests += 1
        workers = [
            control_pb2.AssignedWorker(worker_id=name, address=f"{name}:1", tasks=sorted(tasks))
            for name, tasks in self.assigned.items()
        ]
        found = control_pb2.Assignment(version=self.version, topology="test", workers=workers)
        return control_pb2.GetAssignmentResponse(assignment=found, worker_id=self.workers[address].name)

    def assign(self, **tasks: Iterable[int]) -> None:
        self.version += 1
        self.assigned = {name: set(of) for name, of in tasks.items()}

    @asynccontextmanager
    async def receiving(self, own: Worker, *tasks: int) -> AsyncIterator[Receiver]:
        identity, loop = Identity("test", "c", 1), asyncio.get_running_loop()
        address = f"{own.name}:1"
        receiver = Receiver(address, identity, tasks, SETTINGS, loop, own.open, connections=self)
        receiver.resume()
        try:
            yield receiver
        finally:
            await receiver.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.001)


async def test_only_the_newest_assignment_proves_a_task_unknown() -> None:
    """A worker with an older assignment may not know the task; in the newest, a missing task is an error."""
    own, old, new = Worker("a"), Worker("b", 1), Worker("c")
    cluster = Cluster(own, old, new)
    cluster.version = 5
    async with cluster.receiving(own, 1) as receiver:
        await until(lambda: receiver.connected)
        old.tasks.clear()
        cluster.assigned, cluster.version = {"a": set()}, 4
        requests = cluster.requests
        old.cut()
        await until(lambda: cluster.requests > requests + 3)
        assert receiver.failure is None
        cluster.assign(c=[1])
        cluster.version = 6
        new.tasks.add(1)
        await until(lambda: receiver.connected)
        cluster.assign(a=[])
        new.tasks.clear()
        new.cut()
        await until(lambda: receiver.failure is not None)
        assert isinstance(receiver.failure, UnknownTaskError)


async def test_a_failed_subscription_returns_no_later_messages() -> None:
    """The failure drops the buffer; an acknowledgement of later messages would include the dropped ones."""
    own = Worker("a", 1)
    async with Cluster(own).receiving(own, 1) as receiver:
        await until(lambda: receiver.connected)
        (stream,) = receiver._streams
        receiver.on_failed(UnknownTaskError("task 2 is gone"))
        with receiver.lock:  # as a stream that is still open
            receiver.put(stream.session.receive([Delivery(1, TaskGroup.of(1, [b"later"]))]))
        with pytest.raises(UnknownTaskError):
            await receiver.take_async(0)


async def test_an_accepted_subscription_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that moves to a worker without an answer waits: a worker marks what it delivers again."""
    monkeypatch.setattr(consuming_end, "_ANSWER_SECONDS", 60)
    one, two = Worker("a", 1, 2), Worker("b", 1, 2)
    cluster = Cluster(one, two)
    async with cluster.receiving(one, 1, 2) as receiver:
        await until(lambda: receiver.connected)
        two.answers.clear()
        cluster.assign(a=[2], b=[1])
        await one.move(1)
        await until(lambda: two.last == [1])
        cluster.assign(b=[1, 2])
        await one.move(2)
        requests = cluster.requests
        await until(lambda: cluster.requests > requests + 3)
        two.answers.set()
        await until(lambda: receiver.connected)
    assert [subscribe.worker_incarnation for subscribe in two.subscribed] == [0, 1]
    assert sorted(two.last) == [1, 2]


async def test_a_fork_during_the_search_loses_no_task() -> None:
    """After suspend() at any moment of a move, resume() finds every task again, each at one worker."""
    one, two = Worker("a", 1, 2), Worker("b", 3)
    cluster = Cluster(one, two)
    async with cluster.receiving(one, 1, 2, 3) as receiver:
        await until(lambda: receiver.connected)
        for turns in range(40):
            source, target, task = (one, two, 2) if 2 in one.tasks else (two, one, 2)
            target.tasks.add(task)
            cluster.assign(a=[1, *([2] if target is one else [])], b=[3, *([2] if target is two else [])])
            await source.move(task)
            for _ in range(turns):
                await asyncio.sleep(0)
            await receiver.suspend()
            receiver.resume()
            await until(lambda: receiver.connected)
            assert sorted(one.last + two.last) == [1, 2, 3]
