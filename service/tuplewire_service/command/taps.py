"""The taps of one `tuplewire tap`, with a thread and a client for each. Design: docs/design/traces.md."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack
from queue import Empty, SimpleQueue

from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import TuplewireError, UnreachableError
from tuplewire.text.escaping import escape_unprintable
from tuplewire.wire import control_pb2 as pb
from tuplewire_service.command.parsers import control_of, owners_of

_FOLLOW_SECONDS = 1.0

_Arrived = SimpleQueue[tuple[str, pb.TapResponse | TuplewireError]]


def tapped_at_owners(arguments: argparse.Namespace) -> Generator[pb.TapResponse, None, None]:
    """Yield the responses of taps at the tasks' workers, and open a tap at each worker that a task moves to.

    The counts are the sums of all taps. Without tasks, the only tap is at the given worker. With tasks, the
    messages of a response are those that its worker queued: a message also passes the tap at a worker that
    its task has left. Close the generator to end the taps. Raises the error of a tap at a task's worker.
    """
    tasks, arrived = arguments.task, _Arrived()
    last: dict[str, pb.TapResponse | TuplewireError] = {}
    with ExitStack() as exit_stack:
        first = exit_stack.enter_context(control_of(arguments))
        while True:
            try:
                owners = owners_of(first, tasks)
            except UnreachableError:
                if not any(isinstance(each, pb.TapResponse) for each in last.values()):
                    raise
                owners = {}  # the open taps continue
            for address, worker_id in owners.items():
                if isinstance(ended := last.get(address), TuplewireError):
                    raise ended
                if ended is None:
                    client = exit_stack.enter_context(control_of(arguments, address))
                    last[address] = pb.TapResponse()
                    reader = (client, worker_id, arguments, arrived)
                    threading.Thread(target=_read, args=reader, daemon=True).start()
            until = time.monotonic() + _FOLLOW_SECONDS
            while (left := until - time.monotonic()) > 0:
                try:
                    address, response = arrived.get(timeout=left)
                except Empty:
                    break
                last[address] = response
                if isinstance(response, TuplewireError):
                    break
                counts = [each for each in last.values() if isinstance(each, pb.TapResponse)]
                yield pb.TapResponse(
                    messages=[each for each in response.messages if not tasks or each.place == "local"],
                    passed=sum(each.passed for each in counts),
                    omitted=sum(each.omitted for each in counts),
                )


def _read(client: ControlClient, worker_id: str, given: argparse.Namespace, arrived: _Arrived) -> None:
    tapped = client.tap(given.task, sample=given.sample, max_per_second=given.rate, max_bytes=given.bytes)
    try:
        arrived.put((client.address, next(tapped)))  # without messages: the tap is open
        told = f"tapping at {escape_unprintable(worker_id)}; Ctrl-C ends it"
        print(told, file=sys.stderr, flush=True)
        for response in tapped:
            arrived.put((client.address, response))
    except TuplewireError as error:
        arrived.put((client.address, error))
