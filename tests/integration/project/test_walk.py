"""The path of one message in docs/architecture.md: a message on that path calls every listed function."""

from __future__ import annotations

import json
import re
from pathlib import Path

from helpers.tools import output_of

PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"
MOST_STEPS = 20

_ONE_MESSAGE = """
import json, sys, threading
called = set()
def note(frame, event, argument):
    if event == "call":
        called.add(frame.f_globals.get("__name__", "") + "." + frame.f_code.co_qualname)
threading.setprofile(note)
sys.setprofile(note)

from tuplewire import Client
from tuplewire.connection.loop import messaging_thread
from tuplewire_service.messaging.grpc import GrpcContext
from tuplewire_service.worker.assignment import AssignedWorker, Assignment
from tuplewire_service.worker.worker import Worker
from tuplewire_service.worker.worker_settings import WorkerSettings

loop = messaging_thread()

async def start(name):
    context = GrpcContext()
    context.prepare({"tuplewire.transport.worker_id": name})
    worker = Worker(WorkerSettings(worker_id=name, topology="default"), context, 1)
    await worker.start(0)
    return context, worker

started = [loop.run(start(name)) for name in ("a", "b")]
addresses = [worker.servers.addresses[0] for _, worker in started]
assignment = Assignment(1, "default", tuple(map(AssignedWorker, "ab", addresses, [(1,), (2,)])))

async def assign(worker):
    worker.update_assignment(assignment)

for _, worker in started:
    loop.run(assign(worker))
with Client(addresses[0]) as sender, Client(addresses[1]) as consumer, consumer.recv([2], timeout=30) as got:
    sender.send(2, b"one message")
    assert [message.message for message in next(got)] == [b"one message"]
for _, worker in started:
    loop.run(worker.drain(5))
for context, _ in started:
    context.term()
print(json.dumps(sorted(called)))
"""


def test_every_function_of_the_walk_is_called() -> None:
    """A message from a program to another worker's consumer calls each function of the page, in few steps."""
    walk = re.findall(r"^\| (\d+) \| `([\w.]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(number) for number, _ in walk] == list(range(1, len(walk) + 1))
    assert 10 < len(walk) <= MOST_STEPS
    assert {name for _, name in walk} <= set(json.loads(output_of(_ONE_MESSAGE).splitlines()[-1]))
