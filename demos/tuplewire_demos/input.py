"""Checks of input and output files, and the report of skipped rows."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tuplewire.errors import TuplewireError

MAX_SHOWN_ROWS = 5
"""The maximum number of skipped rows, or of differences, that are shown; all are counted."""
MAX_SHOWN_CHARACTERS = 120


class InputError(TuplewireError):
    """The input file or the output directory cannot be used."""


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """A skipped row: its line number in the file (from 1), the reason, and the start of the row."""

    line: int
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class SkippedRows:
    """The number of skipped rows, and the first of them."""

    count: int
    first: Sequence[SkippedRow]


@contextmanager
def regular_file(path: Path) -> Iterator[Path]:
    """Yield a file that can be read repeatedly and in parts: the given file, or a copy of a pipe.

    The path `-` is standard input. Raises InputError if the pipe cannot be read.
    """
    if str(path) != "-" and not path.is_fifo():
        yield path
        return
    with tempfile.NamedTemporaryFile(prefix="tuplewire-input-") as copy:
        try:
            with sys.stdin.buffer if str(path) == "-" else path.open("rb") as source:
                shutil.copyfileobj(source, copy)
            copy.flush()
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from error
        yield Path(copy.name)


def check_file(path: Path) -> None:
    """Raise InputError unless the path is a readable file that is not empty."""
    try:
        if path.is_dir():
            raise InputError(f"{path} is a directory: name one file")
        with path.open("rb") as file:
            if not file.read(1):
                raise InputError(f"{path} is empty: there is nothing to run on")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def check_output(output: Path | None) -> None:
    """Raise InputError if the output directory exists or cannot be created."""
    if output is None:
        return
    if output.exists():
        raise InputError(f"{output} exists already: name another directory for the output, or remove it")
    parent = output.absolute().parent
    if not parent.is_dir():
        raise InputError(f"cannot make the output {output}: there is no directory {parent}; make it first")
    if not os.access(parent, os.W_OK):
        raise InputError(f"cannot make the output {output}: you have no write permission for {parent}")
