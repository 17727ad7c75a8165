"""Holds rows of an attempt until all of them are checked. Design: docs/design/rows-and-memory.md."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from typing import IO

import pyarrow as pa

from tuplewire.settings.config import MIB

_MEMORY_BYTES = 32 * MIB
_SPARKS_DIRECTORIES = "SPARK_LOCAL_DIRS"
"""The variable with spark.local.dir for Spark's Python processes; directories are separated by commas."""


def buffered_until_checked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same batches, but only after the last one has arrived without an error.

    Batches over a bound on memory wait in an unnamed temporary file; they must have one schema. Raises
    OSError if the file cannot be written.
    """
    kept: deque[pa.RecordBatch] = deque()
    size = 0
    batches = iter(batches)
    for batch in batches:
        kept.append(batch)
        size += batch.nbytes
        if size >= _MEMORY_BYTES:
            break
    with ExitStack() as stack:
        rest = _in_a_file(batches, stack)
        while kept:  # frees each batch once the caller has it
            yield kept.popleft()
        yield from rest


def _in_a_file(batches: Iterator[pa.RecordBatch], stack: ExitStack) -> Iterator[pa.RecordBatch]:
    """Write batches into a file that is open until the stack is closed; return an iterator over them."""
    first = next(batches, None)
    if first is None:
        return iter(())
    directory = os.environ.get(_SPARKS_DIRECTORIES, "").split(",")[0] or None
    with _explained(directory):
        file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - see the stack
        stack.callback(_close, file)
        stream = pa.ipc.new_stream(file, first.schema)
    for batch in chain([first], batches):
        with _explained(directory):
            stream.write_batch(batch)
    with _explained(directory):
        stream.close()
        file.seek(0)
    return iter(pa.ipc.open_stream(file))


def _close(file: IO[bytes]) -> None:
    """Close a file. Write errors were raised before."""
    with suppress(OSError):
        file.close()


@contextmanager
def _explained(directory: str | None) -> Iterator[None]:
    """Add the purpose of the file to an error."""
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno,
            f"{error.strerror}: the rows of a partition wait there until all are checked; set "
            "spark.local.dir to a directory with room, or the option badRows to drop or a task",
            directory or tempfile.gettempdir(),
        ) from error
