"""The job of deploy/cluster-check.sh: numbers go from one worker to the next while these are replaced.

    python cluster_job.py send ADDRESS TASK STOP    until the file STOP is there
    python cluster_job.py recv ADDRESS TASK         until a message with their number
    python cluster_job.py elsewhere ADDRESS TASK    send and receive through a worker without the task
    python cluster_job.py reach HOST PORT=open ...  whether a port lets us in, or, closed, keeps us out
    python cluster_job.py refused ADDRESS           whether a worker needs both a certificate and a token
    python cluster_job.py holds ADDRESS TASK        wait until the worker has the task
    python cluster_job.py outgrow ADDRESS TASK      send until the worker dies, and count the messages left

Every number must arrive once and in order. Otherwise it exits with 1 and names the first wrong number.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from pathlib import Path

import tuplewire
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import UnauthenticatedError, UnreachableError

WAIT_SECONDS = 300.0
REACH_SECONDS = 5.0
POLICY_SECONDS = 60.0
"""The time that a network plugin may take until its rules include a new pod."""
BURST, PAUSE_SECONDS = 100, 0.05


def send(address: str, task: int, stop: Path) -> str:
    """Send numbers, about a thousand a second, and then their count; return the line to print."""
    count = 0
    with tuplewire.Client(address) as client:
        while not stop.exists():
            for number in range(count, count + BURST):
                client.send(task, b"%d" % number, timeout=WAIT_SECONDS)
            count += BURST
            time.sleep(PAUSE_SECONDS)
        client.send(task, b"end %d" % count, timeout=WAIT_SECONDS)
        client.flush(WAIT_SECONDS)
    return f"sent {count} messages, all acknowledged"


def receive(address: str, task: int) -> str:
    """Receive the numbers; return the line to print. SystemExit if one is not the next."""
    count = 0
    with tuplewire.Client(address) as client, client.recv([task], timeout=WAIT_SECONDS) as batches:
        for batch in batches:
            for message in batch:
                if message.message == b"end %d" % count:
                    batches.acknowledge()
                    return f"received {count} messages, each once and in order"
                if message.message != b"%d" % count:
                    sys.exit(f"message {count} is not the next: {message.message!r} came")
                count += 1
    sys.exit(f"no more messages arrived after {count}")


def elsewhere(address: str, task: int) -> str:
    """Receive the messages of another worker's task; return the line to print. SystemExit if one is wrong."""
    expected = [b"%d" % number for number in range(BURST)]
    with tuplewire.Client(address) as client, client.recv([task]) as batches:
        client.send(tuplewire.TaskMessageBatch.from_columns(task, expected), timeout=WAIT_SECONDS)
        found = [message.message for message in batches.messages(BURST, quiet=WAIT_SECONDS)]
    with ControlClient(address) as control:
        local = any(each.task == task for each in control.status().tasks)
    if local or found != expected:
        sys.exit(f"task {task} (local: {local}) has delivered {found}")
    return f"received {len(found)} messages of another worker's task"


def reach(host: str, *ports: str) -> str:
    """Check that ports are open or closed as given; return the line to print. SystemExit if one is not."""
    # An unknown name is not a closed port. The policies of cluster-check are enforced over IPv4 alone.
    address = str(socket.getaddrinfo(host, None, socket.AF_INET)[0][4][0])
    deadline = time.monotonic() + POLICY_SECONDS
    for text in ports:
        port, _, wanted = text.partition("=")
        while (found := _state_of(address, int(port))) != wanted:
            if time.monotonic() > deadline:
                sys.exit(f"{host}:{port} is {found}")
            time.sleep(1.0)
    return f"{host}: {', '.join(ports)}"


def _state_of(address: str, port: int) -> str:
    try:
        socket.create_connection((address, port), REACH_SECONDS).close()
    except OSError:
        return "closed"
    return "open"


def refused(address: str) -> str:
    """Check that a worker answers, with a certificate and a token alone; SystemExit if it lets others in."""
    files = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("TUPLEWIRE_TLS_")}
    token = {"TUPLEWIRE_TOKEN_FILE": os.environ.pop("TUPLEWIRE_TOKEN_FILE")}
    for given, error in ({}, UnreachableError), (files, UnauthenticatedError):
        os.environ.update(given)
        with ControlClient(address) as control:
            try:
                control.status()
            except error as problem:
                print(f"refused: {problem}")
            else:
                sys.exit(f"{address} accepts a client that has only {sorted(given)}")
    os.environ.update(token)
    with ControlClient(address) as control:  # so it was not the network that refused
        control.status()
    return f"{address} needs a certificate and a token"


def holds(address: str, task: int) -> str:
    """Wait until a worker has a task; return the line to print. SystemExit if it does not get it."""
    deadline = time.monotonic() + WAIT_SECONDS
    with ControlClient(address) as control:
        while time.monotonic() < deadline:
            # It is unreachable until the network plugin knows this pod.
            with contextlib.suppress(UnreachableError):
                if any(each.task == task for each in control.status().tasks):
                    return f"{address} has task {task}"
            time.sleep(1.0)
    sys.exit(f"{address} has not got task {task}")


def outgrow(address: str, task: int) -> str:
    """Fill a worker until the kernel kills it, and receive the remaining messages; return a summary.

    SystemExit if more messages are missing than the sender counted, if the order is wrong, or if the worker
    does not die.
    """
    sent, deadline = 0, time.monotonic() + WAIT_SECONDS
    with tuplewire.Client(address) as client:
        while not client.possibly_lost:
            if time.monotonic() > deadline:
                sys.exit(f"the worker lives after {sent} messages")
            client.send(task, b"%-65536d" % sent, timeout=WAIT_SECONDS)
            sent += 1
        client.send(task, b"end", timeout=WAIT_SECONDS)
        client.flush(WAIT_SECONDS)
        lost = client.possibly_lost
        numbers = []
        with client.recv([task], timeout=WAIT_SECONDS) as batches:
            for batch in batches:
                numbers += [message.message for message in batch]
                batches.acknowledge()
                if numbers[-1] == b"end":
                    break
    arrived = [int(number) for number in numbers[:-1]]
    missing = sent - len(arrived)
    if arrived != sorted(set(arrived)) or not 0 < missing <= lost:
        sys.exit(f"of {sent} messages {missing} are missing, of {lost} that may have died: {arrived}")
    return f"sent {sent} messages; {missing} were lost with the worker, at most {lost} by its sender's count"


def main() -> str:
    """Perform the role that the arguments name; return the line to print."""
    role, where, *rest = sys.argv[1:]
    if role == "reach":
        return reach(where, *rest)
    if role == "refused":
        return refused(where)
    task = int(rest[0])
    if role == "send":
        return send(where, task, Path(rest[1]))
    roles = {"recv": receive, "elsewhere": elsewhere, "holds": holds, "outgrow": outgrow}
    return roles[role](where, task)


if __name__ == "__main__":
    print(main(), flush=True)
