"""A child process: its command, environment, log and user. Source: Storm's `Container`.

Used by WorkerProcesses, clusters and Spark topologies. Owns the process and its standard input.
Not thread-safe. Exception: one thread may wait for the process while another one terminates it.
Design: docs/design/topologies.md.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakSet

from tuplewire.errors import ConfigError, TuplewireError
from tuplewire.settings.settings import ENVIRONMENT_PREFIX
from tuplewire.text.events import event_logger

logger = event_logger(__name__)

_LAST_LINES = 20
_inputs: WeakSet[Any] = WeakSet()
"""The standard inputs of this process's children. In a forked process, they would keep them running."""
os.register_at_fork(after_in_child=lambda: [each.close() for each in list(_inputs)])


class LaunchError(TuplewireError):
    """A process did not start, or failed. If it has written a log, the message contains its end."""


def make_private_directory(max_bytes: int = 4096) -> str:
    """Create a directory with mode 0700 and a path of at most max_bytes; the caller removes it.

    Tries the directory for temporary files, XDG_RUNTIME_DIR and /tmp. Raises ConfigError if none works.
    """
    tried: dict[str, str] = {}
    for parent in (None, os.environ.get("XDG_RUNTIME_DIR"), "/tmp"):  # noqa: S108 - private within it
        try:
            made = tempfile.mkdtemp(prefix="tuplewire-", dir=parent or None)
        except OSError as error:
            tried[str(error.filename or "the temporary directory")] = error.strerror or str(error)
            continue
        if len(os.fsencode(made)) <= max_bytes:
            return made
        Path(made).rmdir()
        tried[made] = f"its path has more than {max_bytes} bytes"
    reasons = "; ".join(f"{where}: {why}" for where, why in tried.items())
    raise ConfigError(f"no directory for temporary files ({reasons}): set TMPDIR to one with a short path")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command to run. log_path: the file for its output; a restart appends to it.

    environment: added to this process's variables, except TUPLEWIRE_* ones, which are not inherited. user:
    the user that runs it; None: this process's.
    """

    name: str
    arguments: Sequence[str]
    log_path: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None


class Child:
    """A running process; `process` has its process ID and exit code, and terminates it.

    Its standard input reaches end of file when this process ends, even if killed: the child can then stop.
    Raises LaunchError if it cannot be started, and ConfigError for a user that does not exist.
    """

    def __init__(self, command: Command) -> None:
        self.command = command
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith(ENVIRONMENT_PREFIX)
        }
        # Children import from the same places as this process, including zip files and sys.path changes.
        paths = [environment.get("PYTHONPATH"), *(entry or os.curdir for entry in sys.path)]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        user = None if command.user is None else find_user(command.user)
        if user is not None:
            environment.update(HOME=user.pw_dir, USER=user.pw_name, LOGNAME=user.pw_name)
        try:
            with command.log_path.open("ab") as log:
                self.process = subprocess.Popen(
                    command.arguments,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env={**environment, **command.environment},
                    user=None if user is None else user.pw_uid,
                    group=None if user is None else user.pw_gid,
                    extra_groups=None if user is None else os.getgrouplist(user.pw_name, user.pw_gid),
                    # Ctrl-C must reach only this process, which then stops the others in order.
                    start_new_session=True,
                    bufsize=0,  # so that a close after a fork needs no lock
                )
                _inputs.add(self.process.stdin)
        except PermissionError as error:
            # Without a file name, the error is from the change of the user, not from the program's file.
            if user is None or error.filename is not None:
                raise LaunchError(
                    f"{command.name} cannot be started: {error}; give its user permission to run this file"
                ) from error
            raise not_permitted_error(command.name, user.pw_name) from error
        except OSError as error:
            raise LaunchError(f"{command.name} cannot be started: {error}") from error

    def __repr__(self) -> str:
        code = self.process.poll()
        return f"<Child {self.command.name}: {'runs' if code is None else f'ended with {code}'}>"

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the process to exit and return its exit code; None after `timeout` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(timeout)
        return None

    def wait_or_kill(self, deadline: float) -> int:
        """Wait for the process and return its exit code; kill it (-9) at the deadline, in monotonic time."""
        code = self.wait(max(0.0, deadline - time.monotonic()))
        if code is None:
            logger.warning("process.killed", extra={"process_id": self.process.pid})
            self.process.kill()
            code = self.process.wait()
        if self.process.stdin:
            self.process.stdin.close()
        return code

    def log_tail(self) -> str:
        """Return the last lines of the log, for an error message."""
        text = self.command.log_path.read_text(encoding="utf-8", errors="replace")
        return "\n".join([f"the last lines of {self.command.name}:", *text.splitlines()[-_LAST_LINES:]])


def find_user(name: str) -> pwd.struct_passwd:
    """Return a user of this machine. Raises ConfigError for a user that does not exist."""
    try:
        return pwd.getpwnam(name)
    except KeyError as error:
        raise ConfigError(
            f"processes must run as user {name!r}, which this machine does not have: "
            "name another, or set supervisor.run.worker.as.user to false"
        ) from error


def not_permitted_error(process: str, user: str) -> LaunchError:
    """Return the error for a process of another user, without the right to start it."""
    return LaunchError(
        f"{process} cannot run as {user}: only root may start processes of other users; "
        "run this as root, or set supervisor.run.worker.as.user to false"
    )
