"""Forks the programs that tests start from a process that has already imported Tuplewire.

The imports take most of the time of a short program. A forked program is a child of the test process, with
its own sockets, files, signals and exit code. Only its /proc/PID/cmdline and /proc/PID/environ belong to the
fork server.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import inspect
import json
import os
import platform
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from tuplewire.errors import TuplewireError

PROGRAMS = ["tuplewire", "campaigns", "helpers"]
"""Prefixes of the modules that are forked."""
_STARTUP_VARIABLES = ("ARROW_", "GRPC_", "LANG", "LC_", "LD_", "MALLOC_", "OPENSSL_", "PYTHON", "SSL_", "TZ")
"""Prefixes of the variables that Python or a library reads when it starts."""
_DEFAULTS = {
    **dict.fromkeys(("executable", "preexec_fn", "uid", "gid", "gids")),
    **dict.fromkeys(("umask", "process_group"), -1),
    "pass_fds": (),
    "shell": False,
}
"""The arguments of Popen that a forked program cannot change."""
_MODULES = (
    "tuplewire.aio",
    "tuplewire_service.command.cli",
    "tuplewire_service.messaging.grpc",
    "tuplewire_service.messaging.zmq",
    "tuplewire_service.process.main",
    "tuplewire_topology.clusters.topology_program",
)
"""The imports of a worker, which start no thread."""
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_STREAMS = (("stdin", "r", -1), ("stdout", "w", -1), ("stderr", "w", 1))
_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine(), 0)
"""The number of the system call clone(), or 0 if it is unknown."""
_CLONE_PARENT = 0x8000
_MAX_REQUEST = 1 << 20


class _ForkServer:
    """The process that forks. It exits together with this process."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.variables = _startup_variables(os.environ)
        self._lock = threading.Lock()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env={"GRPC_VERBOSITY": "NONE", **os.environ, "PYTHONPATH": ""},  # as the command does
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.close)

    def close(self) -> None:
        """Stop the process."""
        self._requests.close()
        self.process.wait()

    def fork(self, program: Mapping[str, Any], streams: list[int]) -> int:
        """Start a program with these standard streams, and return its process ID."""
        with self._lock:
            socket.send_fds(self._requests, [json.dumps(program).encode()], streams)
            return int(self._requests.recv(_MAX_REQUEST))


_server: _ForkServer | None = None


def server_id() -> int:
    """Return the process ID of the server; 0 before its first use."""
    return 0 if _server is None else _server.process.pid


def install() -> None:
    """Let subprocess fork programs from now on, unless they have options of Python or other _DEFAULTS."""
    execute: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    signature = inspect.signature(execute)

    def start(process: Any, *values: Any) -> None:
        global _server
        given = signature.bind(process, *values).arguments
        if not _can_fork(given):
            execute(process, *values)
            return
        if _server is None or _server.owner != os.getpid():
            _server = _ForkServer()
        environment = dict(os.environ if given["env"] is None else given["env"])
        if _startup_variables(environment) != _server.variables:
            execute(process, *values)
            return
        program = {
            "words": [os.fsdecode(word) for word in given["args"][2:]],
            "environment": environment,
            "directory": os.path.join(os.getcwd(), given["cwd"] or ""),  # noqa: PTH109, PTH118 - keeps links
            "new_session": given["start_new_session"],
        }
        streams = [given[pipe] for pipe in ("p2cread", "c2pwrite", "errwrite")]
        process.pid = _server.fork(
            program, [number if stream == -1 else stream for number, stream in enumerate(streams)]
        )
        process._child_created = True
        process._close_pipe_fds(*(given[pipe] for pipe in _PIPES))

    if _CLONE:
        subprocess.Popen._execute_child = start  # type: ignore[attr-defined]


@contextmanager
def no_fork_server() -> Iterator[None]:
    """Start each program in a new interpreter."""
    programs, PROGRAMS[:] = PROGRAMS[:], []
    try:
        yield
    finally:
        PROGRAMS[:] = programs


def _can_fork(given: Mapping[str, Any]) -> bool:
    words = given["args"]
    return (
        isinstance(words, list)
        and words[:2] == [sys.executable, "-m"]
        and words[2].startswith(tuple(PROGRAMS))
        and all(given[name] == default for name, default in _DEFAULTS.items())
    )


def _startup_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_STARTUP_VARIABLES) and name != "PYTHONPATH"  # see _run()
    }


def _serve(requests: socket.socket) -> None:
    """Fork a program for each request. Returns in each forked program, and after the last request."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in _MODULES:
        with suppress(TuplewireError):  # an extra is not installed: the program reports that if it needs it
            importlib.import_module(module)
    assert len(os.listdir("/proc/self/task")) == 1, "an import started a thread"  # noqa: PTH208
    gc.collect()
    gc.freeze()
    while True:
        program, streams, _, _ = socket.recv_fds(requests, _MAX_REQUEST, len(_STREAMS))
        if not program:
            return
        process_id = _fork_sibling()
        if process_id == 0:
            requests.close()
            _run(streams, **json.loads(program))
            return
        for stream in streams:
            os.close(stream)
        requests.send(b"%d" % process_id)


def _fork_sibling() -> int:
    """Do the same as os.fork(), but create a child of this process's parent, which can then wait for it."""
    ctypes.pythonapi.PyOS_BeforeFork()
    call = (_CLONE, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0, 0)
    process_id: int = ctypes.PyDLL(None).syscall(*map(ctypes.c_long, call))
    if process_id:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    return process_id


def _run(
    streams: list[int], *, words: list[str], environment: dict[str, str], directory: str, new_session: bool
) -> None:
    """Do the same as `python -m WORDS` in a new interpreter."""
    if new_session:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, (name, mode, buffering) in enumerate(_STREAMS):
        os.dup2(streams[number], number)
        os.close(streams[number])
        was = getattr(sys, name)
        stream = open(number, mode, buffering, was.encoding, was.errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [directory, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv[:] = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    del sys.path[0]  # the directory of this file
    _serve(socket.socket(fileno=int(sys.argv[1])))
