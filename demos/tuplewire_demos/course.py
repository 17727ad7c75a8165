"""Which of the made-up readings is of which time, and where a run goes on that was ended at any moment.

A run that ends takes its workers with it, and what they hold: Spark's own checkpoints would name places that
are gone. But readings can be made again. So what is kept is which windows are complete, and the next run
makes all readings after these: what had come to a later window before is forgotten, and none counts twice.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from tuplewire.errors import ConfigError
from tuplewire_demos.input import InputError, check_output

WINDOW_SECONDS = 5
_FILE = "stream.json"


@dataclass(frozen=True, slots=True)
class Course:
    """The reading with number n is of the time `origin + n / rows_per_second`.

    origin: seconds since the epoch, the beginning of a window. windows: how many are complete since then.
    run: how many runs there were before this one.
    """

    origin: int
    rows_per_second: int
    windows: int = 0
    run: int = 0

    @classmethod
    def starting_now(cls, rows_per_second: int) -> Self:
        """Return one of a first run."""
        now = int(time.time())
        return cls(now - now % WINDOW_SECONDS, rows_per_second)

    @property
    def window_readings(self) -> int:
        """How many readings each window has."""
        return WINDOW_SECONDS * self.rows_per_second

    @property
    def first(self) -> int:
        """The number of the first reading that is not in a complete window."""
        return self.windows * self.window_readings

    @property
    def next_window(self) -> datetime:
        """The beginning of the first window that is not complete."""
        return datetime.fromtimestamp(self.origin + self.windows * WINDOW_SECONDS, UTC)

    def completed(self) -> Self:
        """Return what comes when one more window is complete."""
        return replace(self, windows=self.windows + 1)


class CourseKeeper:
    """Keeps the course of a pipeline's runs in a directory; without one it forgets.

    output: the directory of the windows, which belongs to the course: it is there already when a run goes on,
    and only then.
    """

    def __init__(self, checkpoint: Path | None, output: Path | None) -> None:
        self._file = None if checkpoint is None else checkpoint / _FILE
        self._output = None if output is None else str(output.absolute())
        if self._file is None or not self._file.exists():
            check_output(output)

    def begin(self, rows_per_second: int) -> Course:
        """Return the course of a new run.

        Raises ConfigError where the earlier runs had other options, InputError for a directory that cannot
        be written or read.
        """
        course = Course.starting_now(rows_per_second)
        if self._file is None:
            return course
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            kept = json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else None
        except (OSError, ValueError) as error:
            raise InputError(f"cannot use {self._file}: {error}; name another --checkpoint") from error
        if kept is not None:
            output = kept.pop("output")
            before = Course(**kept)
            if before.rows_per_second != rows_per_second or output != self._output:
                written = "no --output" if output is None else f"--output {output}"
                raise ConfigError(
                    f"{self._file.parent} is of a run with --rows-per-second {before.rows_per_second} and "
                    f"{written}: start with the same, or with another --checkpoint"
                )
            course = replace(before, run=before.run + 1)
        self.keep(course)
        return course

    def keep(self, course: Course) -> None:
        """Write a course down; whoever reads finds the last one, or the one before."""
        if self._file is None:
            return
        new = self._file.with_suffix(".new")
        with new.open("w", encoding="utf-8") as file:
            json.dump({**asdict(course), "output": self._output}, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._file)
