"""Checks of a worker's identity: messages reach only the worker named in the assignment, without cycles."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.admin import get
from helpers.hostile import RECV, SEND, hello, subscribe, talk
from helpers.ports import free_port, listen_peers
from helpers.sinks import first_piece, publish, write
from helpers.topology import (
    TOPOLOGY,
    assign,
    assignment_file,
    collect,
    ledger,
    metric,
    numbered,
    numbers,
    one_worker,
    ready,
    status,
)
from helpers.traffic import client_of, deliver, take

from tuplewire import Client
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import WrongWorkerError
from tuplewire.spark.entry_runs import EntryRuns
from tuplewire.spark.offsets import ReadRange, TaskOffset
from tuplewire.spark.options import source_options
from tuplewire.spark.range_reader import RangeReader
from tuplewire.spark.reader import TuplewireBatchReader
from tuplewire.spark.task_workers import TaskPoller
from tuplewire.values.group import MAX_UNQUEUED_HOPS, TaskGroup
from tuplewire.wire import control_pb2
from tuplewire_service.command.status_report import status_as_text
from tuplewire_service.testing import eventually

NOT_READY = 'tuplewire_refused_streams_total{code="NOT_READY"}'
WRONG_WORKER = 'tuplewire_refused_streams_total{code="WRONG_WORKER"}'
TOO_MANY_HOPS = 'tuplewire_refused_messages_total{code="TOO_MANY_HOPS"}'


def test_the_name_is_looked_at_first(tmp_path: Path) -> None:
    """The worker id is checked before the topology, and may be retried; its own id and none are accepted."""
    with one_worker("w", directory=tmp_path, tasks=[0]) as worker, ControlClient(worker.address) as control:
        answer = talk(worker, SEND, [hello(expected_worker_id="v")])
        assert answer.error == "WRONG_WORKER"
        assert "this is worker 'w', but the sender expects 'v'" in answer.details
        assert [talk(worker, SEND, [hello(expected_worker_id=each)]).error for each in ("w", "")] == ["", ""]
        assert [
            talk(worker, RECV, [subscribe(0, expected_worker_id="v")]).error,
            talk(worker, RECV, [subscribe(0, expected_worker_id="v", topology="other")]).error,
            talk(worker, SEND, [hello(expected_worker_id="v", topology="other")]).error,
        ] == ["WRONG_WORKER"] * 3
        groups = [TaskGroup.of(0, [b"x"])]
        with pytest.raises(WrongWorkerError, match="the sink expects 'v'"):
            control.stage(first_piece("s", 1, "a", groups, "v", "other"))
        with pytest.raises(WrongWorkerError, match="the sink expects 'v'"):
            control.publish(control_pb2.PublishRequest(topology="other", sink="s", expected_worker_id="v"))
        assert publish(control, "s", 1, groups, worker_id="w") == 1


def test_a_program_that_means_a_worker_waits_for_it(tmp_path: Path) -> None:
    """A client with a worker_id waits, and buffers its messages, while another worker has the address."""
    port = free_port()
    with ExitStack() as stack:
        with one_worker("w9", directory=tmp_path, port=port, tasks=[1]) as stranger:
            client = stack.enter_context(Client(stranger.address, topology=TOPOLOGY, worker_id="w2"))
            consumer = stack.enter_context(Client(stranger.address, topology=TOPOLOGY, worker_id="w2"))
            subscription = consumer.recv([1], timeout=30, follow=False)
            eventually(lambda: metric(stranger, WRONG_WORKER) >= 2)
            client.send(numbered(1, range(50)))
            refused = metric(stranger, WRONG_WORKER)
            eventually(lambda: metric(stranger, WRONG_WORKER) >= refused + 4)
            assert (ledger(stranger).accepted, client.ledger().pending) == (0, 50)
        stack.enter_context(one_worker("w2", directory=tmp_path, port=port, tasks=[1]))
        client.flush(30)
        assert numbers(collect(subscription, 50)) == list(range(50))


def test_spark_means_the_workers_of_the_assignment(tmp_path: Path) -> None:
    """Spark's sink and source name the assigned worker, and retry while another worker has its address."""
    port = free_port()
    groups = [TaskGroup.of(1, [b"%d" % number for number in range(5)])]
    with ExitStack() as stack:
        near = stack.enter_context(one_worker("w1", directory=tmp_path))
        own = {"address": near.address, "topology": TOPOLOGY, "tasks": "1"}
        with one_worker("w9", directory=tmp_path, port=port) as stranger:
            assign(near, 1, {near: [0], replace(stranger, worker_id="w2"): [1]})
            assign(stranger, 1, {stranger: [1]})
            with pytest.raises(WrongWorkerError):
                write(near.address, groups, 0.3)
            options = source_options({**own, "timeout": "0.3"})
            with pytest.raises(WrongWorkerError), TaskPoller(options) as tasks:
                tasks.poll_all()
            end = TaskOffset(7, 5, stranger.address, messages=5)
            missing = ReadRange(1, "w2", 0, end, {}, EntryRuns(1, 0, ((5, 9, 1),)))
            with pytest.raises(WrongWorkerError):
                list(RangeReader(missing, options))
            assert ledger(stranger).accepted == 0
            thread = stack.enter_context(ThreadPoolExecutor(1))
            publishing = thread.submit(write, near.address, groups, 60)
        far = stack.enter_context(one_worker("w2", directory=tmp_path, port=port))
        assign(far, 1, {near: [0], far: [1]})
        assert publishing.result(60) == 5
        reader = TuplewireBatchReader(source_options({**own, "timeout": "30"}))
        (partition,) = reader.partitions()
        (batch,) = reader.read(partition)
        assert batch.column("message").to_pylist() == list(groups[0].payloads())


def test_a_worker_under_another_id_is_not_ready_and_says_what_to_do(tmp_path: Path) -> None:
    """Status and readiness name the assigned id. Clients wait for this worker's id, even in open sessions."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    file = assignment_file(tmp_path, 1, {("w1", address): [0]})
    with (
        one_worker("vm:6700", f"--assignment-file={file}", directory=tmp_path, port=port) as worker,
        client_of(worker.address) as client,
    ):
        reason = f"the assignment has no worker vm:6700; it gives {address}, which is here, to w1: start"
        readyz = worker.metrics_url.removesuffix("/metrics") + "/readyz"
        eventually(lambda: reason in get(readyz)[1])
        client.send(numbered(0, range(10)))
        eventually(lambda: metric(worker, NOT_READY) >= 2)
        assert f"not ready   {reason}" in status_as_text(status(worker))
        assert (ledger(worker).accepted, client.ledger().pending) == (0, 10)
        assign(worker, 2, {("vm:6700", worker.address): [0]})
        ready(worker)
        client.flush(10)
        assert numbers(take(worker, 0, 10)) == list(range(10))
        refused = metric(worker, NOT_READY)
        assign(worker, 3, {("v", "127.0.0.1:1"): []})
        eventually(lambda: metric(worker, NOT_READY) > refused)
        client.send(numbered(0, range(10, 20)))
        eventually(lambda: metric(worker, NOT_READY) > refused + 1)
        assert ledger(worker).accepted == 10
        assign(worker, 4, {("vm:6700", worker.address): [0]})
        client.flush(10)
        assert client.ledger().acknowledged == 20


def test_messages_wait_while_another_worker_answers_at_the_address(tmp_path: Path, transport: str) -> None:
    """w1 buffers the messages for w2 while w9 is at w2's address; w2 then receives each once, in order."""
    flag = f"--transport={transport}"
    with ExitStack() as stack:
        near = stack.enter_context(one_worker("w1", flag, directory=tmp_path))
        flags = [flag, *listen_peers(transport)]
        port = free_port()
        with one_worker("w9", *flags, directory=tmp_path, port=port) as stranger:
            meant = {near: [0], replace(stranger, worker_id="w2"): [1]}
            assign(near, 1, meant)
            assign(stranger, 1, meant)
            eventually(lambda: metric(stranger, WRONG_WORKER) >= 2)
            client = stack.enter_context(client_of(near.address))
            client.send(numbered(1, range(50)))
            eventually(lambda: ledger(near).pending == 50)
            assert status(near).not_ready_reason.endswith("w2")
            refused = metric(stranger, WRONG_WORKER)
            eventually(lambda: metric(stranger, WRONG_WORKER) >= refused + 2)
            assert (ledger(stranger).accepted, ledger(near).pending) == (0, 50)
        far = stack.enter_context(one_worker("w2", *flags, directory=tmp_path, port=port))
        assign(far, 1, meant)
        ready(near, far)
        deliver(client, numbered(1, range(50, 100)))
        assert numbers(take(far, 1, 100)) == list(range(100))
        assert (ledger(near).accepted, ledger(far).accepted) == (100, 100)


def test_two_assignments_that_contradict_each_other_make_no_circle(tmp_path: Path) -> None:
    """If two workers assign a task to each other, only its messages are refused, with TOO_MANY_HOPS."""
    with (
        one_worker("a", directory=tmp_path) as a,
        one_worker("b", directory=tmp_path) as b,
        client_of(a.address) as client,
    ):
        assign(a, 1, {a: [0], b: [7, 1]})
        assign(b, 1, {a: [0, 7], b: [1]})
        ready(a, b)
        deliver(client, numbered(7, range(50)))

        def refused() -> int:
            return int(metric(a, TOO_MANY_HOPS) + metric(b, TOO_MANY_HOPS))

        eventually(lambda: refused() == 50)
        eventually(lambda: ledger(a).pending + ledger(b).pending == 0)
        accepted = ledger(a).accepted + ledger(b).accepted
        assert 50 < accepted <= 50 * (MAX_UNQUEUED_HOPS + 2)
        assert ledger(a).dropped["refused"] + ledger(b).dropped["refused"] == 50
        assert ledger(a).balanced
        assert ledger(b).balanced
        deliver(client, numbered(1, range(5)))
        eventually(lambda: ledger(b).pending == 5)


def test_unread_messages_may_move_any_number_of_times(tmp_path: Path) -> None:
    """The hop limit does not apply to queued messages: a task without a consumer may move repeatedly."""
    moves = MAX_UNQUEUED_HOPS + 6
    with (
        one_worker("a", directory=tmp_path) as a,
        one_worker("b", directory=tmp_path) as b,
        client_of(a.address) as client,
    ):
        for version in range(1, moves + 1):
            owner = (a, b)[version % 2]
            assign((a, b), version, {a: [7] if owner is a else [], b: [7] if owner is b else []})
            if version == 1:
                deliver(client, numbered(7, range(10)))
            eventually(lambda owner=owner: sum(t.queued_messages for t in status(owner).tasks) == 10)  # type: ignore[misc]
        assert numbers(take(owner, 7, 10)) == list(range(10))
