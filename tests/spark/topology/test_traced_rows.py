"""Traces through Spark jobs, streaming queries, and a topology's spout and bolts."""

from __future__ import annotations

import pytest
from helpers.collector import RECEIVE, SEND, collector
from helpers.drivers import DRIVER_SECONDS
from helpers.topology import TOPOLOGY, pair_of_workers

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

_DRIVER = """
import sys, tempfile
from pathlib import Path
from tuplewire_topology.spark import run_topology
from tuplewire_demos.local_session import local_session
from tuplewire_demos.word_topology import wordcount_topology
from tuplewire.processes.worker_processes import WorkerProcesses

address, topology, came, on, streamed, fresh = sys.argv[1:]
at = {"address": address, "topology": topology}
source = {**at, "tasks": came, "includeHeaders": "true"}
with (
    local_session("traced", cores=4, conf={"spark.sql.codegen.wholeStage": "false"}) as spark,
    WorkerProcesses(2, "words", flags=["--tracing"]) as workers,
    tempfile.TemporaryDirectory() as place,
):
    rows = spark.read.format("tuplewire").options(**source).load()
    rows = rows.selectExpr(f"{on} as task", "message", "headers")
    rows.write.format("tuplewire").options(**at, deliveryGuarantee="exactlyOnce").mode("append").save()
    numbers = spark.range(0, 20, 1, 1)
    rows = numbers.selectExpr(f"{fresh} as task", "cast(cast(id as string) as binary) as message")
    rows.write.format("tuplewire").options(**at).mode("append").save()
    rows = spark.readStream.format("tuplewire").options(**source).load()
    rows = rows.selectExpr(f"{streamed} as task", "message", "headers")
    sink = rows.writeStream.format("tuplewire").options(**at, checkpointLocation=f"{place}/checkpoint")
    sink.trigger(availableNow=True).start().awaitTermination()
    text = Path(place, "text")
    text.write_text("to be or not to be\\nthat is the question\\n")
    run_topology(
        spark,
        wordcount_topology(text),
        conf={"topology.workers": 2},
        workers=[each.unix_address for each in workers.endpoints],
        progress=lambda _: None,
    )
"""


def test_traces_go_through_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, jobs, streams and tuples keep one trace to the consumer; rows without one get their attempt's."""
    with collector() as seen:
        for name, value in seen.variables.items():
            monkeypatch.setenv(name, value)
        with pair_of_workers("--tracing") as pair:
            address = pair.near.address
            came, on, streamed, fresh = (pair.near_task() for _ in range(4))
            seen.run("sender", SEND, address, TOPOLOGY, came)
            seen.run("spark", _DRIVER, address, TOPOLOGY, came, on, streamed, fresh, seconds=DRIVER_SECONDS)
            for task, count in ((on, 1), (streamed, 1), (fresh, 20)):
                seen.run("consumer", RECEIVE, address, TOPOLOGY, task, count, -1)
            wanted = {f"receive {came}", "send partition 0"}
            wanted |= {f"process {task}" for task in (on, streamed, fresh)}
            seen.await_spans(lambda: {each.name for each in seen.spans} >= wanted, "every span")
            seen.await_spans(lambda: len(seen.named("execute count")) == 10, "every word")
    sent = seen.named(f"send {came}")[0]
    trace = [(each.service, each.name) for each in seen.trace(sent.trace)]
    for expected in (
        ("sender", f"send {came}"),
        ("tuplewire-worker", f"queue {came}"),
        ("spark", f"receive {came}"),
        *(("tuplewire-worker", f"queue {task}") for task in (on, streamed)),
        *(("consumer", f"process {task}") for task in (on, streamed)),
    ):
        assert expected in trace
    assert {each.parent for each in seen.trace(sent.trace)[1:]} == {sent.id}
    attempts = {each.id: each for each in seen.named("send partition 0")}
    assert {each.service for each in attempts.values()} == {"spark"}
    assert {each.parent for each in seen.named(f"process {fresh}")} <= attempts.keys()
    emitted = {each.id: each for each in seen.named("emit lines")}
    split = {each.id: each for each in seen.named("execute split")}
    assert len(emitted) == len(split) == 2
    for counted in seen.named("execute count"):
        middle = split[counted.parent]
        first = emitted[middle.parent]
        assert first.trace == middle.trace == counted.trace
        assert first.start <= middle.start <= counted.start
