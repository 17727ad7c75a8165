"""The command `tuplewire run`: jobs that installed packages declare as entry points."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from tuplewire.errors import ConfigError

ENTRY_POINT_GROUP = "tuplewire.run"
"""An entry point's name is the job's, its object an AddJob."""

AddJob = Callable[[Any, str], None]
"""Adds a job's parser to subparsers, under a name. The parser's default `handler` returns the exit code."""


def add_run_parser(commands: Any) -> None:
    """Add `run` with the jobs that are installed to the subparsers of the command.

    Raises ConfigError when there is none, or one cannot be loaded.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="run a job on local workers and PySpark",
        description="Start local workers and PySpark, run a job through them, and check its result.",
        epilog="`tuplewire run JOB --help` has the options of a job, and an example.",
    )
    found = sorted(entry_points(group=ENTRY_POINT_GROUP))
    if not found:
        raise ConfigError(
            f"there is no job to run: no installed package has an entry point in {ENTRY_POINT_GROUP!r}; "
            "install one that has, as tuplewire[demo]"
        )
    jobs = parser.add_subparsers(title="jobs", metavar="JOB", required=True)
    for point in found:
        _load(point)(jobs, point.name)


def _load(point: EntryPoint) -> AddJob:
    try:
        job: AddJob = point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"cannot load the job {point.name!r} from {point.value}: {error}; install what declares it again"
        ) from error
    return job
