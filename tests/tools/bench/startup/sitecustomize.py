"""Python runs this module at the start of every process that `--profile` starts, workers included.

It profiles each thread from its first call to the process's end, and leaves one file for each.
"""

import atexit
import cProfile
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

_profiles: list[tuple[str, cProfile.Profile]] = []


def _start(*_: FrameType | str | Any) -> None:
    """Profile the thread that this is called on; a profile hook, which enable() replaces by its own."""
    profile = cProfile.Profile()
    _profiles.append((threading.current_thread().name, profile))
    profile.enable()


def _save() -> None:
    worker = [argument for argument in sys.orig_argv if argument.startswith("--worker-id=")]
    role = "-".join(Path(argument).name for argument in worker or sys.orig_argv[1:3])
    for number, (thread, profile) in enumerate(_profiles):
        profile.create_stats()
        if not profile.stats:  # a thread of C alone, such as gRPC's poller
            continue
        name = f"{role}-{os.getpid()}-{number}-{thread}".replace("/", "_").replace(" ", "_")
        profile.dump_stats(Path(os.environ["BENCH_PROFILES"]) / f"{name}.prof")


atexit.register(_save)
_start()
if sys.version_info < (3, 12):  # from there on one profiler sees all threads
    threading.setprofile(_start)
