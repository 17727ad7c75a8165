"""Python runs this module at the start of every process of `--profile`, including workers.

It profiles each thread from its first call to the exit of the process, and writes one file per thread.
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
    """Profile the current thread; a profile hook, which enable() replaces with its own."""
    profile = cProfile.Profile()
    _profiles.append((threading.current_thread().name, profile))
    profile.enable()


def _save() -> None:
    worker = [argument for argument in sys.orig_argv if argument.startswith("--worker-id=")]
    role = "-".join(Path(argument).name for argument in worker or sys.orig_argv[1:4])
    for number, (thread, profile) in enumerate(_profiles):
        profile.create_stats()
        if not profile.stats:  # a thread without Python code, such as gRPC's poller
            continue
        name = f"{role}-{os.getpid()}-{number}-{thread}".replace("/", "_").replace(" ", "_")
        profile.dump_stats(Path(os.environ["BENCH_PROFILES"]) / f"{name}.prof")


atexit.register(_save)
_start()
if sys.version_info < (3, 12):  # since 3.12, one profiler covers all threads
    threading.setprofile(_start)
