"""The public API as type checkers see it. mypy checks this file; it is never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import assert_type

from pyspark.sql import SparkSession

import tuplewire
from tuplewire import TaskMessage, TaskMessageBatch
from tuplewire.aio import Subscription as AioSubscription
from tuplewire.membership.membership import Membership
from tuplewire.spark.client_handle import BlockClient, ClientHandle
from tuplewire.spark.executors import membership
from tuplewire.subscription import Subscription


def blocking(batch: TaskMessageBatch) -> None:
    """Check the client for threads."""
    with tuplewire.Client(ack_mode="processed", flush_timeout_seconds=5, overflow="drop_oldest") as client:
        assert_type(client, tuplewire.Client)
        client.send(1, b"x", key=b"k", headers=[("a", b"b")], timeout=1)
        client.send(batch)
        client.send(TaskMessage(task, b"x") for task in range(3))
        assert_type(client.try_send(1, b"x"), bool)
        client.flush()
        with client.recv(1, timeout=3) as batches:
            assert_type(batches, Subscription)
            assert_type(next(batches), TaskMessageBatch)
            assert_type(batches.messages(3), Iterator[TaskMessage])
        with client.asker(5) as asker:
            assert_type(asker, tuplewire.Asker)
            assert_type(asker.ask(1, b"x", timeout=3), TaskMessage)
            assert_type(asker.ask_all([(1, b"x")]), list[TaskMessage])
        message = TaskMessage(5, b"x")
        assert_type(message.is_request and not message.expired, bool)
        client.answer(message, b"x")
        client.answer_error(message, "x")
        client.close(timeout=None)
    client.send(1)  # type: ignore[call-overload]
    client.send(1, "x")  # type: ignore[call-overload]
    client.send(batch, b"x")  # type: ignore[call-overload]
    client.recv("1")  # type: ignore[arg-type]
    tuplewire.Client(ack_mode="maybe")  # type: ignore[arg-type]
    tuplewire.Client(akc_mode="queued")  # type: ignore[call-arg]


async def awaited(batch: TaskMessageBatch) -> None:
    """Check that the client for asyncio accepts the same arguments."""
    async with tuplewire.aio.Client(flush_timeout_seconds=5) as client:
        await client.send(1, b"x", key=b"k", headers=[("a", b"b")], timeout=1)
        await client.send(batch)
        assert_type(client.try_send(1, b"x"), bool)
        await client.flush()
        async with client.recv([1]) as batches:
            assert_type(batches, AioSubscription)
            assert_type(await anext(batches), TaskMessageBatch)
            assert_type(batches.messages(3), AsyncIterator[TaskMessage])
        await client.send(1)  # type: ignore[call-overload]


def in_spark(batch: TaskMessageBatch) -> None:
    """Check the same for the client of a function that Spark runs."""
    with ClientHandle(flush_timeout_seconds=5) as client:
        assert_type(client, BlockClient)
        client.send(1, b"x", key=b"k", headers=[("a", b"b")], timeout=1)
        client.send(batch)
        assert_type(client.try_send(1, b"x"), bool)
        client.flush()
        assert_type(client.recv(1), Subscription)
        client.send(1)  # type: ignore[call-overload]


def beside(worker: tuplewire.local) -> None:
    """Check the client of a local worker."""
    with worker.client(source=7, ack_mode="processed") as client:
        assert_type(client, tuplewire.Client)


def members(spark: SparkSession) -> None:
    """Check the workers of Spark's executors."""
    with membership(spark, range(64), topology="words", min_workers=2, expire_seconds=5) as workers:
        assert_type(workers, Membership)
    membership(spark, range(64), atleast=2)  # type: ignore[call-arg]


def values(batch: TaskMessageBatch) -> None:
    """Check messages and batches."""
    assert_type(batch[0], TaskMessage)
    assert_type(batch[0:2], TaskMessageBatch)
    assert_type(batch[0].message, bytes)
    assert_type(batch[0].payload, bytes)
    assert_type(batch.payloads, Sequence[bytes])
    assert_type(batch.tasks, Sequence[int])
    TaskMessage(1, bytearray(b"x"))
    TaskMessage(1, "x")  # type: ignore[arg-type]
    batch[0].message = b"y"  # immutable at run time
