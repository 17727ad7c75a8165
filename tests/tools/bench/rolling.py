"""The row of rolling restarts: the latency of a stream while a membership's workers restart in turn."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

from agent import BenchError
from report import Line, compared, percentile, progress
from workload import TOPOLOGY

from tuplewire import Client
from tuplewire.membership import Membership
from tuplewire.processes.worker_processes import WorkerProcesses

ROLLING = "rolling"

_TASKS = range(32)
_RATE = 400  # messages/s
_QUIET_SECONDS = 8.0
_WAIT_SECONDS = 60.0


class _Stream:
    """A steady stream over all tasks, through one worker, and the latency of each message."""

    def __init__(self, address: str) -> None:
        self.milliseconds: list[float] = []
        self.sent = 0
        self._address = address
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._receive, self._send)]
        for thread in self._threads:
            thread.start()

    def _receive(self) -> None:
        with Client(self._address, topology=TOPOLOGY) as client, client.recv(_TASKS) as inbox:
            while not (self._ended.is_set() and len(self.milliseconds) == self.sent):
                for message in inbox.messages(quiet=0.2):
                    self.milliseconds.append((time.perf_counter() - float(message.payload)) * 1000)

    def _send(self) -> None:
        due = time.perf_counter()
        with Client(self._address, topology=TOPOLOGY) as client:
            while not self._ended.is_set():
                client.send(self.sent % len(_TASKS), repr(due).encode())
                self.sent += 1
                due += 1 / _RATE
                time.sleep(max(0.0, due - time.perf_counter()))

    def end(self) -> None:
        """Send no more, and wait until all messages have arrived."""
        self._ended.set()
        for thread in self._threads:
            thread.join(_WAIT_SECONDS)
        if len(self.milliseconds) != self.sent:
            raise BenchError(f"{self.sent} messages were sent, {len(self.milliseconds)} arrived")


def measure_rolling(*_: object) -> list[Line]:
    """Restart three of four workers, one after another, below a stream through the fourth."""
    with ExitStack() as stack:
        lives = [WorkerProcesses(1, TOPOLOGY, flags=[f"--worker-id=w{number}"]) for number in range(4)]
        stack.callback(lambda: [each.stop() for each in lives])
        for each in lives:
            each.start()
        addresses = [each.endpoints[0].address for each in lives]
        membership = stack.enter_context(Membership(addresses, _TASKS, topology=TOPOLOGY, min_workers=4))
        stream = _Stream(addresses[0])
        progress(f"a stream over four workers, {_QUIET_SECONDS:g} s without a restart")
        time.sleep(1.0)  # connections and first use
        first = len(stream.milliseconds)
        time.sleep(_QUIET_SECONDS)
        quiet = stream.milliseconds[first:]
        first = len(stream.milliseconds)
        for number in (1, 2, 3):
            progress(f"the restart of worker {number} of 3")
            lives[number].stop()
            flags = [f"--worker-id=w{number}", f"--listen={addresses[number]}"]
            lives[number] = WorkerProcesses(1, TOPOLOGY, flags=flags)
            lives[number].start()
            membership.wait(4, _WAIT_SECONDS)
        rolling = stream.milliseconds[first:]
        stream.end()
    title = f"{_RATE} messages/s over four workers, three restarted: p99"
    pairs = [(percentile(rolling, 99), percentile(quiet, 99))]
    return [compared(ROLLING, title, "ms", pairs, "the same without a restart", target=2.0)]
