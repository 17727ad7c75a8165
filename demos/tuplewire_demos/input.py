"""What is said of an input file: that it cannot be used, or which of its rows were left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tuplewire.errors import TuplewireError

SHOWN_ROWS = 5
"""How many bad rows are kept to be shown; all of them are counted."""
SHOWN_CHARACTERS = 120
"""How much of each."""


class InputError(TuplewireError):
    """The input cannot be used at all."""


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """A row that was left out: its line number in the file (from 1), why, and the row itself."""

    line: int
    problem: str
    text: str


@dataclass(frozen=True, slots=True)
class SkippedRows:
    """How many rows were left out, and the first of them."""

    count: int
    first: Sequence[SkippedRow]


def check_file(path: Path) -> None:
    """Raise InputError unless the path is a readable file with something in it."""
    try:
        if path.is_dir():
            raise InputError(f"{path} is a directory: name one file")
        with path.open("rb") as file:
            if not file.read(1):
                raise InputError(f"{path} is empty: there is nothing to run on")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def check_output(output: Path | None) -> None:
    """Raise InputError when the output directory is there already."""
    if output is not None and output.exists():
        raise InputError(f"{output} exists already: name another directory for the output, or remove it")
