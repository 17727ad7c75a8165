"""Spark's source, sink and handle with certificates and tokens from the environment or from options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.certificates import Authority
from helpers.secured import files_of, secret_file, tls_flags, variables_of
from helpers.spark_calls import begin_attempt, end_attempt, payloads, rows
from helpers.topology import TOPOLOGY, collect, numbered
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tuplewire import Credentials
from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire.spark.client_handle import ClientHandle, close_clients
from tuplewire.spark.options import sink_options, source_options
from tuplewire.spark.reader import TuplewireStreamReader
from tuplewire.spark.writer import TuplewireStreamWriter

WORKER = "worker.example"


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Endpoint]]:
    """Run two workers, with tasks 1 and 2, that require the certificate and token of this environment."""
    authority = Authority()
    files = authority.issue(WORKER).write(tmp_path / "worker")
    token = secret_file(tmp_path / "token", "etl " + "0" * 20)
    program = files_of(authority.issue("etl.example"), tmp_path / "program", WORKER, token_file=token)
    for name, value in variables_of(program).items():
        monkeypatch.setenv(name, value)
    flags = [*tls_flags(files), f"--token-file={token}"]
    with WorkerProcesses(2, TOPOLOGY, flags=flags, credentials=program, drain_seconds=1) as started:
        started.assign({0: [1], 1: [2]})
        yield started.endpoints
    end_attempt()


@pytest.mark.parametrize("by_options", [False, True])
def test_environment_opens_every_surface(
    workers: list[Endpoint],
    monkeypatch: pytest.MonkeyPatch,
    by_options: bool,  # noqa: FBT001
) -> None:
    """The environment's credentials work for a handle, a query's source and a query's sink, at both workers.

    Options of the format work the same way if the environment has no credentials.
    """
    near = workers[0]
    with ClientHandle(near.address, topology=TOPOLOGY) as client:
        client.send(numbered(2, range(10)))
    close_clients()
    options = {"address": near.address, "topology": TOPOLOGY, "timeout": "20"}
    variables = variables_of(Credentials.from_environment())
    for name, value in variables.items() if by_options else ():
        monkeypatch.delenv(name)
        options[f"tuplewire.{name.removeprefix('TUPLEWIRE_').lower()}"] = value
    reader = TuplewireStreamReader(source_options({**options, "tasks": "2"}))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert payloads(reader, reader.partitions(start, end)) == list(range(10))
    reader.latestOffset(end, ReadAllAvailable())  # Spark calls this once the batch is in its commit log
    reader.stop()

    sinks = sink_options(options), sink_options({**options, "deliveryGuarantee": "atLeastOnce"})
    begin_attempt(attempt=1)
    for each in sinks:
        writer = TuplewireStreamWriter(each)
        writer.commit([writer.write(iter([rows(1, range(7, 8))]))], 0)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with (
        ClientHandle(near.unix_address, topology=TOPOLOGY) as client,
        client.recv([1], timeout=20) as batches,
    ):
        assert [payload for _, payload in collect(batches, 2)] == [b"7"] * 2
    close_clients()


def test_without_them_nothing_opens(workers: list[Endpoint], monkeypatch: pytest.MonkeyPatch) -> None:
    """A query without credentials fails with an error that names the missing setting, and reads nothing."""
    for name in variables_of(Credentials.from_environment()):
        monkeypatch.delenv(name)
    options = {"address": workers[0].unix_address, "topology": TOPOLOGY, "timeout": "1", "tasks": "1"}
    reader = TuplewireStreamReader(source_options(options))
    with pytest.raises(Exception, match="requires a token: name its file"):
        reader.initialOffset()
    reader.stop()
