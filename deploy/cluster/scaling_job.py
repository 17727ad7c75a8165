"""The job of the autoscaling step: full queues bring another worker, and empty queues remove it.

    python scaling_job.py SERVICE TASKS COUNT

SERVICE is the headless Service of the workers `tuplewire-worker-0` and so on. The job sends COUNT messages of
1 KiB to each of the tasks 0 to TASKS - 1, more than their queues hold, and prints "full" once no more fit.
When a third worker has tasks, the job empties the queues, and continues to send and receive until that worker
has stopped. Each task's messages must arrive in order. A message may come twice only with its mark
`redelivered`.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence

import tuplewire
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import TuplewireError
from tuplewire.v1 import control_pb2

PORT = 6700
MOST_WORKERS = 4
WAIT_SECONDS = 240.0
IDLE_SECONDS = 1.0
TURN_SECONDS = 5.0
PAUSE_SECONDS = 0.05
FULL = 0.95
"""A queue that holds this share of its bytes has no room for another frame."""


class Flow:
    """Numbered messages to each task.

    Attributes:
        sent: how many the workers have accepted, by task.
        taken: how many have arrived, by task.
    """

    def __init__(self, service: str, tasks: int, count: int) -> None:
        self.sent = dict.fromkeys(range(tasks), 0)
        self.taken = dict.fromkeys(range(tasks), 0)
        self._service = service
        self._count = count
        self._ended = threading.Event()
        self._emptied = threading.Event()

    def send(self) -> None:
        """Send COUNT numbers to each task as fast as there is room, then a few a second until `end`."""
        with tuplewire.Client(f"tuplewire-worker-0.{self._service}:{PORT}") as client:
            while not self._ended.wait(PAUSE_SECONDS):
                for task in self.sent:
                    self._send_some(client, task)
            client.flush(WAIT_SECONDS)

    def _send_some(self, client: tuplewire.Client, task: int) -> None:
        wanted = max(self._count, self.sent[task] + 1) if self._emptied.is_set() else self._count
        while self.sent[task] < wanted and client.try_send(task, b"%-1024d" % self.sent[task]):
            self.sent[task] += 1

    def wait_until_full(self) -> None:
        """Wait until every task's queue is full; SystemExit if that never happens."""
        deadline = time.monotonic() + WAIT_SECONDS
        while (full := sum(self._loads())) < len(self.sent):
            if time.monotonic() > deadline:
                sys.exit(f"only {full} of {len(self.sent)} queues are full: {self.sent}")
            time.sleep(1.0)

    def owners(self) -> Iterator[tuple[str, list[int]]]:
        """Return each worker that can be reached, and its tasks."""
        return ((address, [each.task for each in tasks]) for address, tasks in self._status())

    def _loads(self) -> Iterator[bool]:
        """Return for each task whether its queue is full."""
        return (each.load >= FULL for _, tasks in self._status() for each in tasks)

    def _status(self) -> Iterator[tuple[str, Sequence[control_pb2.TaskStatus]]]:
        for number in range(MOST_WORKERS):
            host = f"tuplewire-worker-{number}.{self._service}"
            try:
                socket.getaddrinfo(host, PORT)
            except OSError:
                continue  # no such pod
            with contextlib.suppress(TuplewireError), ControlClient(f"{host}:{PORT}") as control:
                yield f"{host}:{PORT}", control.status().tasks

    def wait_for_workers(self, wanted: int, *, take: bool) -> None:
        """Wait until that many workers have tasks, and optionally take messages; SystemExit if that fails."""
        deadline = time.monotonic() + WAIT_SECONDS
        while (found := sum(bool(tasks) for _, tasks in self.owners())) != wanted:
            if time.monotonic() > deadline:
                sys.exit(f"{found} workers have tasks, not {wanted}")
            if take:
                self.take_some()
            else:
                time.sleep(1.0)

    def take_some(self) -> None:
        """Receive the messages that wait at each worker now."""
        for address, tasks in self.owners():
            # A task that moves ends the subscription, and the next round finds its new owner. A TimeoutError
            # says that nothing waits.
            with contextlib.suppress(TuplewireError, TimeoutError):
                self._take_from(address, tasks)

    def _take_from(self, address: str, tasks: list[int]) -> None:
        if not tasks:
            return
        end = time.monotonic() + TURN_SECONDS
        with tuplewire.Client(address) as client, client.recv(tasks, timeout=IDLE_SECONDS) as batches:
            for batch in batches:
                again = any(group.redelivered for group in batch.groups)
                for message in batch:
                    self._check(message, again=again)
                batches.acknowledge()
                if time.monotonic() > end:
                    break  # the others wait, too

    def _check(self, message: tuplewire.TaskMessage, *, again: bool) -> None:
        number, wanted = int(message.message), self.taken[message.task]
        if number == wanted:
            self.taken[message.task] += 1
        elif number > wanted or not again:
            sys.exit(f"task {message.task}: {number} came where {wanted} is next")

    def take_the_rest(self) -> None:
        """Take everything that was sent; SystemExit if some of it does not arrive."""
        deadline = time.monotonic() + WAIT_SECONDS
        while self.taken != self.sent:
            if time.monotonic() > deadline:
                sys.exit(f"{self.taken} arrived of {self.sent}")
            self.take_some()

    def trickle(self) -> None:
        """From now on send a few messages a second, with room in all queues."""
        self._emptied.set()

    def end(self) -> None:
        """Stop sending."""
        self._ended.set()


def main() -> str:
    """Run the job by its arguments; return the text to print."""
    service, tasks, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    flow = Flow(service, tasks, count)
    sender = threading.Thread(target=flow.send)
    sender.start()
    try:
        flow.wait_until_full()
        print(f"full: {flow.sent}", flush=True)
        flow.wait_for_workers(3, take=False)
        print("a third worker has tasks", flush=True)
        flow.trickle()
        flow.wait_for_workers(2, take=True)
    finally:
        flow.end()
        sender.join()
    flow.take_the_rest()
    total = sum(flow.sent.values())
    return f"the third worker has stopped; {total} messages arrived, each task's in order"


if __name__ == "__main__":
    print(main(), flush=True)
