"""Messages of an attempt that are held back until all of its rows have been checked."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain

from tuplewire.config import MIB
from tuplewire.group import TaskGroup
from tuplewire.session.pieces import wire_bytes
from tuplewire.wire.codec import groups_of, plain_frame
from tuplewire.wire.opaque_pb2 import OpaqueFrame

_MEMORY_BYTES = 32 * MIB
_SPARKS_DIRECTORIES = "SPARK_LOCAL_DIRS"
"""Where Spark says to its Python processes what spark.local.dir is; several are divided by commas."""


def held_back(groups: Iterable[TaskGroup]) -> Iterator[TaskGroup]:
    """Yield the same groups, once there are no more; an error among them, and nothing is yielded.

    Those that are over a bound on memory wait in a temporary file, which has no name. Raises OSError where it
    cannot be written.
    """
    kept: list[TaskGroup] = []
    size = 0
    groups = iter(groups)
    for group in groups:
        kept.append(group)
        size += wire_bytes(group)
        if size >= _MEMORY_BYTES:
            break
    with ExitStack() as stack:
        rest = _in_a_file(groups, stack)
        yield from kept
        yield from rest


def _in_a_file(groups: Iterator[TaskGroup], stack: ExitStack) -> Iterator[TaskGroup]:
    """Write groups into a file that is open until the stack is closed; return what reads them."""
    first = next(groups, None)
    if first is None:
        return iter(())
    directory = os.environ.get(_SPARKS_DIRECTORIES, "").split(",")[0] or None
    with _explained(directory):
        file = stack.enter_context(tempfile.TemporaryFile(dir=directory))  # noqa: SIM115 - see the stack
    lengths = []
    for group in chain([first], groups):
        data = plain_frame([group])
        lengths.append(len(data))
        with _explained(directory):
            file.write(data)
    with _explained(directory):
        file.seek(0)
    return (group for length in lengths for group in groups_of(OpaqueFrame.FromString(file.read(length))))


@contextmanager
def _explained(directory: str | None) -> Iterator[None]:
    """Say what the file is for where it cannot be written."""
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno,
            f"{error.strerror}: the rows of a partition wait there until all are checked; set "
            "spark.local.dir to a directory with room, or the option badRows to drop or a task",
            directory or tempfile.gettempdir(),
        ) from error
