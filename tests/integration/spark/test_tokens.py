"""Tokens: required over TCP and the Unix socket, rotated while in use, used by Spark, and never exposed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers import eventually
from helpers.admin import get, scrape
from helpers.secured import Authority, denied, files_of, secret_file, tls_flags, variables_of
from helpers.spark_calls import begin_attempt, end_attempt, payloads, rows
from helpers.topology import TOPOLOGY, collect, numbered, workers_with
from helpers.traffic import deliver
from helpers.worker_process import run_command
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tuplewire import Client, Credentials, aio
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import TuplewireError, UnauthenticatedError
from tuplewire.processes.worker_processes import Endpoint, WorkerProcesses
from tuplewire.spark.client_handle import ClientHandle, close_clients
from tuplewire.spark.options import sink_options, source_options
from tuplewire.spark.reader import TuplewireStreamReader
from tuplewire.spark.writer import TuplewireStreamWriter

_SECONDS = 60.0
OLD, NEW, WRONG = "old-" + "0" * 20, "new-" + "1" * 20, "wrong-" + "2" * 20


class Guarded(NamedTuple):
    """A worker with task 1 that requires a token, its token file and its log."""

    endpoint: Endpoint
    tokens: Path
    log: Path


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Run the worker."""
    folder = tmp_path_factory.mktemp("tokens")
    tokens = secret_file(folder / "token", f"etl {OLD}\n")
    flags = [f"--token-file={tokens}", "--log-level=debug"]
    old = _credentials(folder, OLD)
    with workers_with([1], flags=flags, directory=folder, drain_seconds=0.1, credentials=old) as workers:
        yield Guarded(workers.endpoints[0], tokens, workers.log_path(0))


def _credentials(folder: Path, *tokens: str) -> Credentials:
    return Credentials(token_file=str(secret_file(folder / "mine", "\n".join(tokens))))


def _sends(address: str, credentials: Credentials | None) -> None:
    with Client(address, topology=TOPOLOGY, credentials=credentials) as client:
        deliver(client, 1, b"message")


@pytest.fixture(params=["tcp", "unix"])
def address(request: pytest.FixtureRequest, worker: Guarded) -> str:
    """Return an address of the worker: TCP, then the Unix socket."""
    return worker.endpoint.address if request.param == "tcp" else worker.endpoint.unix_address


@pytest.mark.parametrize("token", [None, WRONG])
def test_wrong_token_and_none_are_refused(
    worker: Guarded, address: str, tmp_path: Path, token: str | None
) -> None:
    """Without a valid token, sending, receiving and control are refused and counted."""
    credentials = Credentials() if token is None else _credentials(tmp_path, token)
    reason = "no_token" if token is None else "wrong_token"
    before = denied(worker.endpoint, reason)
    with pytest.raises(UnauthenticatedError, match="token"):
        _sends(address, credentials)
    with (
        Client(address, topology=TOPOLOGY, credentials=credentials) as client,
        client.recv([1], timeout=_SECONDS) as batches,
        pytest.raises(UnauthenticatedError),
    ):
        next(batches)
    with ControlClient(address, credentials=credentials) as control, pytest.raises(UnauthenticatedError):
        control.status()
    assert denied(worker.endpoint, reason) >= before + 3


def test_probes_need_no_token(worker: Guarded) -> None:
    """Health probes over gRPC and HTTP need no token."""
    with ControlClient(worker.endpoint.address, credentials=Credentials()) as control:
        control.wait_ready(_SECONDS)
    assert get(worker.endpoint.metrics_url.replace("/metrics", "/readyz"))[0] == 200


async def test_asyncio_client_and_spark_handle_show_theirs(worker: Guarded, tmp_path: Path) -> None:
    """The asyncio client and the Spark handle use credentials; a pickled handle contains no token."""
    credentials = _credentials(tmp_path, OLD)

    address = worker.endpoint.unix_address
    async with aio.Client(address, topology=TOPOLOGY, credentials=credentials) as client:
        await client.send(1, b"asyncio")
        await client.flush(_SECONDS)

    handle = ClientHandle(worker.endpoint.unix_address, topology=TOPOLOGY, credentials=credentials)
    assert OLD not in repr(handle.__getstate__())


def test_commands_take_a_token(worker: Guarded, tmp_path: Path) -> None:
    """`tuplewire status` uses the token file of its flag; without one, the error names the variable."""
    refused = run_command("status", "--address", worker.endpoint.address)
    assert refused.returncode == 1
    assert "TUPLEWIRE_TOKEN_FILE" in refused.stderr
    mine = _credentials(tmp_path, OLD).token_file
    assert (
        "worker-0"
        in run_command("status", "--address", worker.endpoint.address, f"--token-file={mine}").stdout
    )


def test_tokens_rotate(worker: Guarded, tmp_path: Path) -> None:
    """Both tokens are valid while both are in the file; sessions continue, and clients reread their files."""
    credentials = _credentials(tmp_path, OLD)
    mine = Path(str(credentials.token_file))
    with Client(worker.endpoint.address, topology=TOPOLOGY, credentials=credentials) as client:
        deliver(client, 1, b"before")
        worker.tokens.write_text(f"etl {OLD}\netl {NEW}\n", encoding="utf-8")
        _sends(worker.endpoint.address, credentials)
        mine.write_text(NEW, encoding="utf-8")
        _sends(worker.endpoint.address, credentials)
        worker.tokens.write_text(f"etl {NEW}\n", encoding="utf-8")
        deliver(client, 1, b"after")
    with pytest.raises(UnauthenticatedError):
        _sends(worker.endpoint.address, _credentials(tmp_path, OLD))
    worker.tokens.write_text(f"etl {OLD}\n", encoding="utf-8")
    _sends(worker.endpoint.address, _credentials(tmp_path, OLD))


def test_a_removed_token_closes_its_streams_during_a_drain(tmp_path: Path) -> None:
    """A draining worker still watches its token file, and closes the streams of a removed token."""
    tokens = secret_file(tmp_path / "token", f"etl {OLD}\netl {NEW}\n")
    credentials = []
    for name, token in (("old", OLD), ("new", NEW)):
        (tmp_path / name).mkdir()
        credentials.append(_credentials(tmp_path / name, token))
    old, new = credentials
    flags = [f"--token-file={tokens}"]
    with (
        workers_with([1, 2], flags=flags, directory=tmp_path, drain_seconds=60, credentials=new) as workers,
        Client(workers.endpoints[0].address, topology=TOPOLOGY, credentials=new) as keeper,
        Client(workers.endpoints[0].address, topology=TOPOLOGY, credentials=old) as removed,
    ):
        endpoint = workers.endpoints[0]
        with Client(endpoint.address, topology=TOPOLOGY, credentials=new) as sender:
            for task in (1, 2):
                sender.send(task, b"holds the drain open")
        kept, closed = keeper.recv([2], timeout=_SECONDS), removed.recv([1], timeout=_SECONDS)
        next(kept)
        next(closed)
        os.kill(endpoint.process_id, signal.SIGTERM)
        eventually(lambda: "worker.draining" in workers.log_path(0).read_text(), what="draining")
        tokens.write_text(f"etl {NEW}\n", encoding="utf-8")
        eventually(lambda: denied(endpoint, "wrong_token") > 0, what="the stream is closed")
        kept.acknowledge()
        with keeper.recv([1], timeout=_SECONDS) as rest:
            next(rest)


def test_tokens_are_told_to_nobody(worker: Guarded, tmp_path: Path) -> None:
    """Tokens appear in no log, error, metric or status, and not in the output of --print-config."""
    told = []
    for token in (OLD, WRONG):
        try:
            _sends(worker.endpoint.address, credentials := _credentials(tmp_path, token))
        except TuplewireError as error:
            told += [str(error), repr(error)]
        told.append(repr(credentials))
    with ControlClient(worker.endpoint.address, credentials=_credentials(tmp_path, OLD)) as control:
        told += [str(control.status()), repr(control)]
    told.append(scrape(worker.endpoint.metrics_url))
    told.append(worker.log.read_text(encoding="utf-8"))
    printed = run_command("worker", f"--token-file={worker.tokens}", "--print-config")
    told += [printed.stdout, printed.stderr]
    assert str(worker.tokens) in printed.stdout
    assert not [text for text in told if any(token in text for token in (OLD, NEW, WRONG))]
    assert "access.denied" in told[-3]


def test_readable_by_all_is_warned_of(tmp_path: Path) -> None:
    """A token file that every user can read is accepted, with a warning in the log."""
    tokens = secret_file(tmp_path / "token", OLD)
    tokens.chmod(0o644)
    with WorkerProcesses(1, TOPOLOGY, flags=[f"--token-file={tokens}"], directory=tmp_path) as workers:
        assert "secret.readable_by_all" in workers.log_path(0).read_text(encoding="utf-8")


def test_workers_show_a_token_to_each_other(tmp_path: Path) -> None:
    """Without TLS, workers authenticate to each other with the token in their token file."""
    tokens = secret_file(tmp_path / "token", OLD)
    credentials = Credentials(token_file=str(tokens))
    flags = [f"--token-file={tokens}"]
    with workers_with([1], [2], flags=flags, drain_seconds=0.1, credentials=credentials) as workers:
        near, far = workers.endpoints
        with Client(near.address, topology=TOPOLOGY, credentials=credentials) as client:
            deliver(client, 2, b"over")
        with (
            Client(far.address, topology=TOPOLOGY, credentials=credentials) as client,
            client.recv([2], timeout=_SECONDS) as batches,
        ):
            assert [message.message for message in next(batches)] == [b"over"]


WORKER_NAME = "worker.example"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Endpoint], Credentials]]:
    """Run two workers with tasks 1 and 2; yield them, and the certificate and token that they require."""
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority()
    files = authority.issue(WORKER_NAME).write(folder / "worker")
    token = secret_file(folder / "token", "etl " + "0" * 20)
    program = files_of(authority.issue("etl.example"), folder / "program", WORKER_NAME, token_file=token)
    flags = [*tls_flags(files), f"--token-file={token}"]
    with workers_with([1], [2], flags=flags, credentials=program, drain_seconds=0.1) as started:
        yield started.endpoints, program


@pytest.mark.parametrize("by_options", [False, True])
def test_environment_opens_every_surface(
    secured: tuple[list[Endpoint], Credentials],
    monkeypatch: pytest.MonkeyPatch,
    by_options: bool,  # noqa: FBT001
) -> None:
    """The environment's credentials, or options, work for handle, source and sink at both workers."""
    (near, _), program = secured
    for name, value in variables_of(program).items():
        monkeypatch.setenv(name, value)
    with ClientHandle(near.address, topology=TOPOLOGY) as client:
        client.send(numbered(2, range(10)))
    close_clients()
    options = {"address": near.address, "topology": TOPOLOGY, "timeout": "20"}
    variables = variables_of(program)
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
    epoch = int(by_options)  # each epoch is published once
    begin_attempt(attempt=1, epoch=epoch)
    for each in sinks:
        writer = TuplewireStreamWriter(each)
        writer.commit([writer.write(iter([rows(1, range(7, 8))]))], epoch)
    end_attempt()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with (
        ClientHandle(near.unix_address, topology=TOPOLOGY) as client,
        client.recv([1], timeout=20) as batches,
    ):
        assert [payload for _, payload in collect(batches, 2)] == [b"7"] * 2
    close_clients()
