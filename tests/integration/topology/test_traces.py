"""Traces that a real collector receives, across programs, workers, consumers and topologies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers import eventually
from helpers.admin import get
from helpers.collector import RECEIVE, SEND, Collector, SeenSpan, collector
from helpers.topology import TOPOLOGY, Pair, pair_of_workers

from tuplewire.processes.worker_processes import Endpoint
from tuplewire_topology.clusters.cluster import DistributedCluster

_ASYNCIO = """
import asyncio, sys
from tuplewire import aio

async def main():
    task, answer = map(int, sys.argv[3:])
    async with aio.Client(sys.argv[1], topology=sys.argv[2]) as client:
        await client.send(task, b"alone")
        async for message in client.recv(task).messages(1):
            await client.send(answer, message.payload)

asyncio.run(main())
"""
_SEND_BATCH = """
import sys, tuplewire
from opentelemetry import trace
from tuplewire import TaskMessage
from tuplewire.tracing import enable
enable(sample_ratio=0)
task = int(sys.argv[3])
with tuplewire.Client(sys.argv[1], topology=sys.argv[2]) as client:
    client.send(task, b"not sampled")
    for number in range(2):
        with trace.get_tracer("mine").start_as_current_span(f"order {number}"):
            client.send([TaskMessage(task, b"%d" % each) for each in range(10)])
            client.try_send(task, b"and one alone")
"""


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Run a collector for the spans of the workers that a test starts."""
    with collector() as found:
        for name, value in found.variables.items():
            monkeypatch.setenv(name, value)
        yield found


@pytest.fixture
def traced(seen: Collector) -> Iterator[Pair]:  # noqa: ARG001 - must start before the workers
    """Run two workers with tracing."""
    with pair_of_workers("--tracing") as pair:
        yield pair


def marked(worker: Endpoint, span: SeenSpan) -> set[str]:
    """Return the histograms of a worker with an exemplar of this span."""
    mark = f'# {{span_id="{span.id}",trace_id="{span.trace}"}} '
    _, text = get(worker.metrics_url, "application/openmetrics-text; version=1.0.0")
    return {line.partition("{")[0] for line in text.splitlines() if mark in line}


def test_one_message_through_two_workers(seen: Collector, traced: Pair) -> None:
    """A message has one trace: sender, workers, consumer, in order. Both histograms have exemplars of it."""
    far, answer = traced.far_task(), traced.near_task()
    seen.run("sender", SEND, traced.near.address, TOPOLOGY, far)
    seen.run("consumer", RECEIVE, traced.far.address, TOPOLOGY, far, 1, answer)
    expected = [
        ("sender", f"send {far}"),
        ("tuplewire-worker", f"forward {far}"),
        ("tuplewire-worker", f"queue {far}"),
        ("consumer", f"receive {far}"),
        ("consumer", f"process {far}"),
        ("consumer", f"send {answer}"),
    ]
    names = [name for _, name in expected]
    seen.await_spans(lambda: {each.name for each in seen.spans} >= set(names), "every span")
    spans = [each for each in seen.trace(seen.named(names[0])[0].trace) if each.name in names]
    assert [(each.service, each.name) for each in spans] == expected
    send, forward, queue, receive, process, reply = spans
    assert send.parent == ""
    assert {each.parent for each in (forward, queue, receive, process)} == {send.id}
    assert reply.parent == process.id
    assert (forward.instance, queue.instance) == (traced.near.worker_id, traced.far.worker_id)
    assert forward.about["tuplewire.to"] == traced.far.worker_id
    assert process.links == [receive.id]
    assert send.start <= forward.start <= queue.start <= queue.end <= receive.end <= process.start
    both = {"tuplewire_queue_wait_seconds_bucket", "tuplewire_end_to_end_seconds_bucket"}
    eventually(lambda: marked(traced.far, queue) == both, 20)
    eventually(lambda: marked(traced.near, send) == {"tuplewire_send_to_ack_seconds_bucket"}, 20)
    assert "trace_id" not in get(traced.far.metrics_url)[1]


def test_batches_are_linked_and_what_is_not_sampled_has_no_span(seen: Collector, traced: Pair) -> None:
    """Traces in one batch have their own spans, and `receive` links to each; unsampled messages have none."""
    task = traced.near_task()
    seen.run("sender", _SEND_BATCH, traced.near.address, TOPOLOGY, task)
    seen.run("consumer", RECEIVE, traced.near.address, TOPOLOGY, task, 23, -1)
    seen.await_spans(lambda: len(seen.named(f"queue {task}")) >= 4, "what was queued")
    seen.await_spans(lambda: len(seen.named(f"process {task}")) >= 4, "what was processed")
    orders = seen.named("order 0", "order 1")
    assert [each.name for each in orders] == ["order 0", "order 1"]
    sent = seen.named(f"send {task}")
    assert [(each.parent, each.trace) for each in sent] == [
        (order.id, order.trace) for order in orders for _ in range(2)
    ]
    assert [int(each.about["messaging.batch.message_count"]) for each in sent] == [10, 1, 10, 1]
    assert {each.parent for each in seen.named(f"queue {task}")} == {each.id for each in sent}
    assert {each.parent for each in seen.named(f"process {task}")} == {each.id for each in sent}
    received = seen.named(f"receive {task}")
    linked = [link for each in received for link in each.links]
    assert all(len(each.links) > 1 or each.parent for each in received)
    assert {*linked, *(each.parent for each in received if not each.links)} == {each.id for each in sent}


def test_asyncio(seen: Collector, traced: Pair) -> None:
    """The asyncio client creates the same spans, also for messages received one at a time."""
    task, answer = traced.near_task(), traced.near_task()
    seen.run("aio", _ASYNCIO, traced.near.address, TOPOLOGY, task, answer)
    names = [f"send {task}", f"queue {task}", f"receive {task}", f"process {task}", f"send {answer}"]
    seen.await_spans(lambda: all(seen.named(name) for name in names), "every span")
    first = seen.named(names[0])[0]
    assert [each.name for each in seen.trace(first.trace) if each.name in names] == names
    assert seen.named(names[-1])[0].parent == seen.named(f"process {task}")[0].id


def test_a_spouts_tuple_through_two_bolts(seen: Collector) -> None:
    """In two worker processes, a trace has the spans of emit, split, count and the workers between them."""
    about = {"tuplewire.worker.tracing": True, "tuplewire.worker.trace_sample_ratio": 0.05}
    with DistributedCluster() as cluster:
        conf = {"topology.workers": 2, **about}
        cluster.submit("words", conf, "helpers.words:topology", collect=["count"]).finish(120)
        seen.await_spans(lambda: seen.named("execute count"), "the last bolt")
    emitted = {each.id: each for each in seen.named("emit lines")}
    assert 0 < len(emitted) < 900
    split = {each.id: each for each in seen.named("execute split")}
    assert {each.parent for each in split.values()} <= emitted.keys()
    counted = seen.named("execute count")
    assert counted
    assert {each.parent for each in counted} <= split.keys()
    for last in counted:
        middle = split[last.parent]
        first = emitted[middle.parent]
        assert first.trace == middle.trace == last.trace
        assert first.start <= middle.start <= last.start
    between = [each for each in seen.spans if each.name.startswith(("forward", "queue"))]
    assert between
    assert {each.parent for each in between} <= emitted.keys() | split.keys()
