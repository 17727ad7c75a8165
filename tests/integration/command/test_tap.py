"""Taps at real workers: the messages shown and omitted, permissions, and no effect on delivery."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from helpers import eventually
from helpers.secured import denied, guarded
from helpers.tools import ran, started
from helpers.topology import TOPOLOGY, Pair, collect, metric, numbered, numbers, workers_with
from helpers.traffic import deliver
from helpers.worker_process import COMMAND, run_command, running

from tuplewire import Client, TaskMessage
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import DrainingError, PermissionDeniedError, ResourceLimitError
from tuplewire.packing.packing import pack_values
from tuplewire.processes.worker_processes import Endpoint
from tuplewire.values.headers import decode_headers
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.worker.taps import MAX_TAPS

_SECONDS = 60.0


def opened(tapped: Iterator[pb.TapResponse]) -> Iterator[pb.TapResponse]:
    """Wait until a tap is open."""
    first = next(tapped)
    assert (list(first.messages), first.passed_messages) == ([], 0)
    return tapped


def seen(tapped: Iterator[pb.TapResponse], passed: int) -> tuple[list[pb.TappedMessage], int]:
    """Return the messages that a tap shows until `passed` messages have passed, and the number omitted."""
    found: list[pb.TappedMessage] = []
    for response in tapped:
        found += response.messages
        if response.passed_messages >= passed:
            return found, response.omitted_messages
    raise AssertionError("a tap does not end")


def taps(endpoint: Endpoint) -> float:
    """Return the number of open taps."""
    return metric(endpoint, "tuplewire_taps")


def test_messages_are_seen_at_both_workers_and_still_arrive(pair: Pair) -> None:
    """A tap shows messages in order, with key, headers, origin and target; the consumer receives all."""
    task = pair.far_task()
    trace = [("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")]
    with (
        ControlClient(pair.near.address) as near,
        ControlClient(pair.far.address) as far,
        closing(near.tap([task])) as at_entry,
        closing(far.tap([task], max_bytes=3)) as at_owner,
        Client(pair.near.address, topology=TOPOLOGY, client_id="program") as sender,
        Client(pair.far.address, topology=TOPOLOGY) as consumer,
    ):
        opened(at_entry)
        opened(at_owner)
        before = metric(pair.near, "tuplewire_tapped_messages_total")
        sender.send(numbered(task, range(50), source=7))
        sender.send([TaskMessage(task, b"last one", key=b"k", headers=trace)])
        sender.send(numbered(pair.near_task(), range(10)))  # to another task
        sender.flush(_SECONDS)
        with consumer.recv([task], timeout=_SECONDS) as subscription:
            assert numbers(collect(subscription, 51)[:50], source=7) == list(range(50))

        shown, omitted = seen(at_entry, 51)
        assert omitted == 0
        assert [each.payload for each in shown] == [*(b"%d" % number for number in range(50)), b"last one"]
        assert {(each.task, each.place, each.from_worker) for each in shown} == {
            (task, pair.far.worker_id, False)
        }
        assert {each.sender_id for each in shown} == {"program"}
        assert [each.HasField("source") for each in shown] == [True] * 50 + [False]
        assert decode_headers(shown[-1].headers) == (b"k", tuple(trace))

        shown, _ = seen(at_owner, 51)
        assert [each.payload_bytes for each in shown[-2:]] == [2, 8]
        assert shown[-1].payload == b"las"
        assert {(each.place, each.from_worker) for each in shown} == {("local", True)}
        assert all(each.seen_unix_micros >= each.accepted_unix_micros > 0 for each in shown[:-1])
        assert metric(pair.near, "tuplewire_tapped_messages_total") == before + 51
    eventually(lambda: taps(pair.near) == taps(pair.far) == 0)


def test_what_is_over_the_rate_is_counted_and_goes_on(pair: Pair, task: int) -> None:
    """A sample is exact; messages above the rate are omitted from the tap, but not from the queue."""
    with (
        ControlClient(pair.near.address) as control,
        closing(control.tap([task], sample=0.1, max_per_second=1000)) as sampled,
        closing(control.tap([task], max_per_second=5)) as slow,
        Client(pair.near.address, topology=TOPOLOGY) as client,
    ):
        opened(sampled)
        opened(slow)
        deliver(client, numbered(task, range(1500)))
        shown, omitted = seen(sampled, 1500)
        assert abs(len(shown) - 150) <= 1
        assert omitted == 0
        found = [int(each.payload) for each in shown]
        assert found == sorted(set(found))
        shown, omitted = seen(slow, 1500)
        assert 5 <= len(shown) < 1500
        assert len(shown) + omitted == 1500
        with client.recv([task], timeout=_SECONDS) as subscription:
            assert numbers(collect(subscription, 1500)) == list(range(1500))
    eventually(lambda: metric(pair.near, "tuplewire_tap_omitted_messages_total") >= omitted)


def test_whoever_does_not_read_holds_nobody_up(pair: Pair, task: int) -> None:
    """With an unread tap, messages still arrive, and the worker stores a bounded number of copies."""
    with (
        ControlClient(pair.near.address) as control,
        closing(control.tap([task], max_per_second=1000, max_bytes=1 << 16)) as tapped,
        Client(pair.near.address, topology=TOPOLOGY) as client,
        client.recv([task], timeout=_SECONDS) as subscription,
    ):
        opened(tapped)
        for _ in range(40):
            client.send([TaskMessage(task, bytes(60_000))] * 20)
            collect(subscription, 20)
        client.flush(_SECONDS)
        shown = omitted = 0
        while shown + omitted < 800:  # waiting messages are read in several responses
            response = next(tapped)
            shown, omitted = shown + len(response.messages), response.omitted_messages
        assert omitted > 0


def test_too_many_taps_are_refused(pair: Pair) -> None:
    """Taps are limited because each one copies messages; another is accepted after one has closed."""
    with ControlClient(pair.far.address) as control, ExitStack() as open_taps:
        for _ in range(MAX_TAPS):
            opened(open_taps.enter_context(closing(control.tap())))
        with pytest.raises(ResourceLimitError, match="taps are open at this worker"):
            next(control.tap())
        open_taps.close()
        eventually(lambda: taps(pair.far) == 0)
        with closing(control.tap()) as again:
            opened(again)


def tap_command(endpoint: Endpoint, *words: str) -> subprocess.Popen[str]:
    """Start the command, and wait until its tap is open."""
    command = (*COMMAND, "tap", "--address", endpoint.address, *words)
    process = started(*command, encoding="utf-8", env={**os.environ, "PYTHONIOENCODING": "utf-8"})
    assert process.stderr is not None
    line = process.stderr.readline()
    assert line.startswith("tapping at "), line + process.stderr.read()
    return process


@pytest.mark.parametrize(
    ("decoding", "payload", "said"),
    [
        ("text", b"\x1b[2J caf\xc3\xa9 \xff", r"\x1b[2J café \xff"),
        ("json", b'{"b":  [1, "\\u001b"]}', '{"b": [1, "\\u001b"]}'),
        ("json", b"\x1bnone", r"(no json) \x1bnone"),
        ("tuple", pack_values(["3:words:default", [], ["wör\x1bd", 5]]), r"3:words:default ['wör\x1bd', 5]"),
        ("tuple", b"\x93\xc1", r"(no tuple) "),
    ],
)
def test_lines_are_safe_for_a_terminal(pair: Pair, decoding: str, payload: bytes, said: str) -> None:
    """A payload is decoded as configured; control characters in it, its headers or its key are escaped."""
    task = pair.near_task()
    with tap_command(pair.near, "--tasks", str(task), "--decode", decoding, "--count", "1") as process:
        with Client(pair.near.address, topology=TOPOLOGY) as client:
            deliver(client, [TaskMessage(task, payload, key=b"\x1bkey", headers=[("a\x1b\n", b"\x07v")])])
        out, err = process.communicate(timeout=_SECONDS)
    assert process.returncode == 0, err
    (line,) = out.splitlines()
    assert line.isprintable()
    assert said in line.partition(" | ")[2]
    assert f"task={task} place=local" in line
    assert "key=" in line
    assert "headers=" in line
    assert err.splitlines()[-1] == "1 shown, 0 omitted, of 1 that passed"


def test_an_unknown_task_is_an_error(pair: Pair) -> None:
    """A tap of a task outside of the assignment would show nothing."""
    ended = run_command("tap", "--address", pair.near.address, "--tasks", "99999")
    assert (ended.returncode, "99999 is not in assignment version 1, which has" in ended.stderr) == (1, True)


def test_json_lines_and_ctrl_c(pair: Pair, task: int) -> None:
    """A program reads objects with the exact bytes; Ctrl-C ends the command, which prints the counts."""
    with tap_command(pair.near, "--tasks", str(task), "--json") as process:
        with Client(pair.near.address, topology=TOPOLOGY) as client:
            deliver(client, task, b"\xff")
        assert process.stdout is not None
        found = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=_SECONDS)
    assert (found["task"], found["base64"], found["payload_bytes"]) == (task, "/w==", 1)
    assert process.returncode == 130
    assert "1 shown, 0 omitted, of 1 that passed" in err


def test_send_accepts_the_lines_of_a_tap(pair: Pair) -> None:
    """`send --format json` sends tapped messages again, and refuses messages that the tap has cut off."""
    task = pair.near_task()
    message = TaskMessage(task, b"\xff" * 5, key=b"k", headers=[("a", b"1")])
    address = f"--address={pair.near.address}"
    send = [*COMMAND, "send", "--format", "json", address, f"--topology={TOPOLOGY}"]
    with (
        Client(pair.near.address, topology=TOPOLOGY, source=7) as client,
        client.recv([task]) as subscription,
    ):
        for flags in (["--count", "1"], ["--count", "1", "--bytes", "3"]):
            with tap_command(pair.near, "--tasks", str(task), "--json", *flags) as process:
                deliver(client, [message])
                lines, _ = process.communicate(timeout=_SECONDS)
            sent = ran(*send, input=lines)
            if "--bytes" in flags:
                assert sent.returncode == 64
                assert "message 1 has only 3 of 5 bytes: use tap --bytes=5" in sent.stderr
            else:
                assert sent.returncode == 0, sent.stderr
        assert list(subscription.messages(3, quiet=_SECONDS)) == [message] * 3


def test_a_tap_follows_its_task() -> None:
    """The tap is at the worker that owns the task; after a move, another tap is at the new owner."""
    with workers_with([1], [2], drain_seconds=0.1) as workers:
        near, far = workers.endpoints
        with (
            tap_command(near, "--tasks", "2", "--count", "20") as process,
            Client(near.address, topology=TOPOLOGY) as client,
            client.recv([2], timeout=_SECONDS) as subscription,
        ):
            assert taps(far) == 1
            deliver(client, numbered(2, range(10)))
            collect(subscription, 10)
            workers.assign({0: [1, 2]}, _SECONDS)
            assert process.stderr is not None
            assert process.stderr.readline().startswith("tapping at worker-0")
            deliver(client, numbered(2, range(10, 20)))
            out, err = process.communicate(timeout=_SECONDS)
    assert process.returncode == 0, err
    lines = out.splitlines()
    assert [int(line.rpartition(" | ")[2]) for line in lines] == list(range(20))
    assert all(" place=local " in line for line in lines)


def test_a_drain_ends_a_tap(tmp_path: Path) -> None:
    """A drain does not wait for a tap, which ends with the reason; the log contains its start and end."""
    with running(tmp_path, "--tasks=0-9") as worker, ControlClient(worker.address) as control:
        with closing(control.tap([3], sample=0.5)) as tapped:
            opened(tapped)
            assert worker.process.poll() is None
            worker.process.send_signal(signal.SIGTERM)
            with pytest.raises(DrainingError, match="draining"):
                list(tapped)
        assert worker.process.wait(_SECONDS) == 0
        assert "tap.started client=ipv4:127.0.0.1" in worker.log
        assert "tasks=3 sample=0.5 per_second=100" in worker.log
        assert "tap.ended" in worker.log


RULES = """
[[client]]
tokens = ["looker"]
tap = "1-9"

[[client]]
tokens = ["operator"]
send = "*"
receive = "*"
control = ["assign", "drain"]
"""


def test_a_tap_takes_a_permission_of_its_own(tmp_path: Path) -> None:
    """A tap requires its own permission, and ends when the rules no longer allow one of its tasks."""
    with guarded(tmp_path, RULES, "operator", "looker") as (workers, credentials):
        operator, looker = credentials.values()
        workers.assign({0: range(20)}, _SECONDS)
        (worker,) = workers.endpoints
        with (
            ControlClient(worker.address, credentials=looker) as looking,
            ControlClient(worker.address, credentials=operator) as operating,
        ):
            for control, tasks, problem in (
                (operating, [1], "token operator may not tap task 1"),
                (looking, [1, 10], "token looker may not tap task 10"),
                (looking, [], "token looker may not tap every task"),
            ):
                with pytest.raises(PermissionDeniedError, match=problem):
                    next(control.tap(tasks))
            assert denied(worker, "task") == 3
            with closing(looking.tap([1, 2])) as tapped:
                opened(tapped)
                with Client(worker.address, topology=TOPOLOGY, credentials=operator) as sender:
                    deliver(sender, 2, b"message")
                shown, _ = seen(tapped, 1)
                assert [each.payload for each in shown] == [b"message"]
                (tmp_path / "permissions.toml").write_text(RULES.replace('"1-9"', '"2-9"'), encoding="utf-8")
                with pytest.raises(PermissionDeniedError, match="may not tap task 1"):
                    list(tapped)
        with ControlClient(worker.address, credentials=operator) as control:
            assert control.status().state == pb.WORKER_STATE_READY
