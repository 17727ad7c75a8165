"""Workers that a topology on Spark starts: only the processes of the run can use them."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from helpers import eventually
from helpers.admin import samples
from helpers.browser import page_data, web_viewer
from helpers.doubling import CountedDouble, DoubleAndDie, Numbers, doubling
from helpers.measured_words import added_up
from helpers.ports import listening_hosts
from pyspark.sql import SparkSession

from tuplewire.settings.addresses import ADDRESS_VARIABLE
from tuplewire.wire import control_pb2, messaging_pb2
from tuplewire.wire.control_pb2_grpc import ControlStub
from tuplewire.wire.messaging_pb2_grpc import MessagingStub
from tuplewire_topology.spark import run_topology, submit_topology

pytestmark = pytest.mark.spark

SECONDS = 180.0
N_WORKERS = 3
"""One for each of the two PySpark tasks, and one for the driver."""
LAST = 1000
DEATHS = 2
WATCH = r"TUPLEWIRE_TOKEN_FILE=(/\S+) tuplewire top --web --address (\S+)"


def started(topology: str) -> dict[Path, dict[str, str]]:
    """Return the worker processes of a topology with their flags, by their folder in /proc."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text().split("\0")
        except OSError:
            continue
        if f"--topology={topology}" in words:
            found[process] = dict(
                word.split("=", 1) for word in words if word.startswith("--") and "=" in word
            )
    return found


def foreign_calls(channel: grpc.Channel, token: tuple[tuple[str, str], ...]) -> dict[str, Callable[[], Any]]:
    """Return calls that a foreign program may try, by method."""
    control: Any = ControlStub(channel)  # type: ignore[no-untyped-call]
    messaging: Any = MessagingStub(channel)  # type: ignore[no-untyped-call]
    assignment = control_pb2.Assignment(version=1 << 40, topology="guarded")
    hello = messaging_pb2.Hello(protocol_version=1, topology="guarded", sender_id="x", incarnation=1)
    common: dict[str, Any] = {"metadata": token, "timeout": 20}
    return {
        "UpdateAssignment": lambda: control.UpdateAssignment(
            control_pb2.UpdateAssignmentRequest(assignment=assignment, force=True), **common
        ),
        "Send": lambda: next(messaging.Send(iter([messaging_pb2.SendRequest(hello=hello)]), **common)),
        "Recv": lambda: next(messaging.Recv(iter([messaging_pb2.RecvRequest()]), **common)),
    }


def refused(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    """Return the status code and the details of a refused call."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), str(caught.value.details())


@pytest.mark.slow
@pytest.mark.usefixtures("no_fork_server")  # a forked worker has no command line by which it is found
def test_only_the_run_talks_to_its_workers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Foreign calls are UNAUTHENTICATED, the run completes, and its workers leave nothing behind."""
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    running = submit_topology(
        spark,
        doubling(Numbers(None, tmp_path), CountedDouble()),
        conf={"topology.workers": 2, "topology.max.spout.pending": 100},
        name="guarded",
    )
    secret = running._submission.token.secret
    eventually(lambda: running.progress().executed > 1000, SECONDS, "tuples are executed")
    workers = started("guarded")
    assert len(workers) == N_WORKERS
    for process, flags in workers.items():
        file = Path(flags["--address-file"])
        address = json.loads(file.read_text())["address"]
        bound = socket.gethostbyname(address.rpartition(":")[0])
        assert listening_hosts(int(process.name)) <= {bound, "127.0.0.1"}, "no other port is on the network"
        for token in ((), (("authorization", f"Bearer {'0' * len(secret)}"),)):
            with grpc.insecure_channel(address) as channel:
                for method, call in foreign_calls(channel, token).items():
                    code, details = refused(call)
                    assert code is grpc.StatusCode.UNAUTHENTICATED, (method, details)
                    assert secret not in details
        assert Path(flags["--token-file"]).stat().st_mode & 0o777 == 0o600
        for shown in (process / "cmdline", process / "environ", *file.parent.glob("*.log")):
            assert secret.encode() not in shown.read_bytes(), shown
    assert secret not in repr(running) + running.watch_command
    hint = re.fullmatch(WATCH, running.watch_command)
    assert hint is not None, running.watch_command
    assert Path(hint[1]).read_text().split() == ["run", secret]
    with web_viewer(hint[2], {"TUPLEWIRE_TOKEN_FILE": hint[1]}) as link:
        assert secret not in link

        def seen() -> bool:
            page = page_data(link)
            found = {each["component"]: each for each in page["components"]}
            return (
                [each["state"] for each in page["workers"]] == ["ready"] * N_WORKERS
                and found.keys() >= {"numbers", "double"}
                and len(found["double"]["workers"]) == 2
                and str(page["tasks"]).count("'double'") == 2
                and found["double"]["busy"] > 0
                and all(each["rate"] for each in page["edges"] if each["target"] == "double")
            )

        eventually(seen, SECONDS, "the page shows the run's workers, components, tasks and rates")
    told = [json.loads(Path(flags["--address-file"]).read_text()) for flags in workers.values()]

    def doubled() -> float:
        return sum(added_up(samples(each["metrics_url"]), "tuplewire_user_doubled_total") for each in told)

    eventually(lambda: doubled() > 0, SECONDS, "the run's metrics are told by its workers")
    executed = running.progress().executed
    eventually(lambda: running.progress().executed > executed, SECONDS, "the run goes on")
    running.stop()
    assert running.result(SECONDS).frame.count() == int((tmp_path / "emitted").read_text()) > 1000
    eventually(lambda: not started("guarded"), SECONDS, "its workers have ended")
    assert not [flags for flags in workers.values() if Path(flags["--token-file"]).exists()]


@pytest.mark.slow
def test_a_process_is_lost_in_each_generation(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each generation has new workers; no result is missing. The log has the watch command, but no token."""
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    result = run_topology(
        spark,
        doubling(Numbers(LAST, tmp_path), DoubleAndDie(LAST // 2, tmp_path, DEATHS)),
        conf={"topology.workers": 2, "topology.max.spout.pending": 100},
        outputs={"double": "number long, doubled long"},
        name="mortal",
    )
    said = capsys.readouterr().err
    assert len(list(tmp_path.glob("died-*"))) == DEATHS
    assert sorted(map(tuple, result.frame.collect())) == [(each, 2 * each) for each in range(LAST)]
    assert re.search(f"topology mortal: watch it with {WATCH}\n", said), said
    assert re.search("[0-9a-f]{64}", said) is None  # as long as a token
