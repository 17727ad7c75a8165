"""A client in a process with logging handlers, audit hooks, forks, interrupts or gevent."""

from __future__ import annotations

import json

import pytest
from helpers.tools import output_of
from helpers.topology import queued

from tuplewire.processes.worker_processes import Endpoint


def run(script: str, endpoint: Endpoint, task: int, *more: str) -> str:
    """Run a script in a separate process with an address and a task; return its last line."""
    # With its fork support on, gRPC itself sometimes crashes a child.
    output = output_of(script, endpoint.address, str(task), *more, GRPC_ENABLE_FORK_SUPPORT="0")
    return output.splitlines()[-1]


_LOGS = """
import contextlib, logging, sys
from tuplewire import Client
from tuplewire.errors import ClosedError
client = Client(sys.argv[1], topology="test")
task = int(sys.argv[2])

class Sends(logging.Handler):
    def emit(self, record):
        with contextlib.suppress(ClosedError):  # of the log about its own end
            client.send(task, record.getMessage().encode())

logging.basicConfig(level=logging.DEBUG, handlers=[Sends()])
client.send(task, b"first")
other = Client(sys.argv[1], topology="test")
for number in range(200):
    logging.getLogger("mine").warning("number %d", number)
    other.send(task + 1, b"x")
client.flush(20)
other.close(20)
client.close(20)
print("done")
"""


def test_a_logging_handler_may_send(endpoint: Endpoint) -> None:
    """A handler on the root logger at DEBUG may send, even on records of asyncio or a connecting client."""
    assert run(_LOGS, endpoint, 0) == "done"
    assert queued(endpoint, 0) >= 201
    assert queued(endpoint, 1) == 200


_FULL = """
import logging, sys
from tuplewire import Client
from tuplewire.errors import BufferFullError, ClosedError
client = Client(sys.argv[1], topology="test", max_pending_messages=1)
told = []

class Sends(logging.Handler):
    def emit(self, record):
        try:
            for _ in range(3):
                client.send(int(sys.argv[2]), b"x")
        except BufferFullError as error:
            told.append(error)
        except ClosedError:
            pass  # of the log about its own end

logging.getLogger("tuplewire").addHandler(Sends())
logging.getLogger("tuplewire").setLevel(logging.DEBUG)
with Client(sys.argv[1], topology="test") as other:
    other.send(int(sys.argv[2]), b"y")
    other.flush(20)
client.close(20)
print(bool(told))
"""


def test_a_handler_on_the_loop_does_not_wait_for_itself(endpoint: Endpoint) -> None:
    """If the buffer is full, a handler on the loop's thread gets an error instead of blocking the loop."""
    assert run(_FULL, endpoint, 3) == "True"


_INTERRUPTED = """
import os, signal, sys, threading, time
from tuplewire import Client
client = Client(sys.argv[1], topology="test")
task, after = int(sys.argv[2]), float(sys.argv[3])
client.send(task, b"before")
client.flush(20)
sys.unraisablehook = lambda _: None
parent = os.getpid()
timer = threading.Timer(after, os.kill, (parent, signal.SIGINT))
child = 0
try:
    timer.start()
    child = os.fork()
    if child == 0:
        code = 0
        try:
            client.send(task, b"child")
            client.flush(20)
        except BaseException as error:
            code = 0 if type(error).__name__ in {"ClosedError", "KeyboardInterrupt"} else 1
        os._exit(code)
    time.sleep(2 * after + 0.2)
except KeyboardInterrupt:
    pass
status = os.wait()[1] if child else 0
client.send(task, b"after")
client.flush(20)
client.close(20)
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize("after", [0.0, 0.002, 0.005, 0.01])
def test_an_interrupt_during_a_fork(endpoint: Endpoint, after: float) -> None:
    """After an interrupt at any moment of a fork, the parent can send; the child sends or gets an error."""
    assert run(_INTERRUPTED, endpoint, 4, str(after)) == "0"


_BARE_FORK = """
import ctypes, os, sys
from tuplewire import Client
from tuplewire.errors import ClosedError
client = Client(sys.argv[1], topology="test")
task = int(sys.argv[2])
if sys.argv[3] == "connected":
    client.send(task, b"before")
    client.flush(20)
if os.fork() == 0:  # with the hook: that says nothing of the next fork
    os._exit(0)
os.wait()
client.send(task, b"between") if sys.argv[3] == "connected" else None
child = ctypes.PyDLL(None).fork()  # with the GIL, as uWSGI does: the child needs it
if child == 0:
    ctypes.pythonapi.PyOS_AfterFork_Child()
    code = 1
    try:
        client.send(task, b"child")
        client.flush(20)
        code = 10
    except ClosedError as error:
        code = 20 if "uWSGI" in str(error) else 1
    finally:
        os._exit(code)
_, status = os.wait()
client.send(task, b"after")
client.flush(20)
client.close(20)
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize(("state", "code"), [("connected", "20"), ("idle", "10")])
def test_a_fork_without_the_hook_before_it(endpoint: Endpoint, state: str, code: str) -> None:
    """After a fork as in uWSGI, the child of a connected process gets an immediate error with advice."""
    assert run(_BARE_FORK, endpoint, 5, state) == code


_GREEN = """
import json, sys
import gevent.monkey
from tuplewire import Client
from tuplewire.errors import ConfigError
client = Client(sys.argv[1], topology="test")
task, patches = int(sys.argv[2]), json.loads(sys.argv[3])
if sys.argv[4] == "connected":
    client.send(task, b"before")
    client.flush(20)
gevent.monkey.patch_all(**patches)
try:
    client.send(task, b"x", timeout=20)
    client.flush(20)
    print("sent")
except ConfigError as error:
    print("gevent has replaced" in str(error) and "thread=False, select=False" in str(error))
"""


@pytest.mark.parametrize(
    ("patches", "state"), [({}, "connected"), ({"thread": False}, "idle"), ({"select": False}, "connected")]
)
def test_gevent_is_refused(endpoint: Endpoint, patches: dict[str, bool], state: str) -> None:
    """If gevent replaces threads or select, send() raises an error, because it would wait indefinitely."""
    assert run(_GREEN, endpoint, 6, json.dumps(patches), state) == "True"


def test_gevent_without_threads_works(endpoint: Endpoint) -> None:
    """With the patches that the error recommends, gevent works."""
    assert run(_GREEN, endpoint, 7, json.dumps({"thread": False, "select": False}), "idle") == "sent"


_AT_EXIT = """
import atexit, sys

def late():
    try:
        client.send(int(sys.argv[2]), b"late")
    except ClosedError as error:
        print(error)

atexit.register(late)  # what is registered first runs last
from tuplewire import Client
from tuplewire.errors import ClosedError
client = Client(sys.argv[1], topology="test")
client.send(int(sys.argv[2]), b"x")
"""


def test_an_exit_handler_is_told_why(endpoint: Endpoint) -> None:
    """Open clients close before exit handlers run, and the error in a handler gives this reason."""
    assert "as the program ends" in run(_AT_EXIT, endpoint, 8)
