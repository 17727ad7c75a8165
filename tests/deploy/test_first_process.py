"""The command as process 1 of a container."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from helpers.worker_process import environment_without_ours

STARTING = """
import sys, time, types

cli = types.ModuleType("tuplewire_service.command.cli")

def main():
    print("starting", flush=True)
    time.sleep(60)

cli.main = main
sys.modules["tuplewire_service.command.cli"] = cli
from tuplewire_service.command import entry
entry.main()
"""


def test_it_ends_by_sigterm_while_it_starts() -> None:
    """The kernel ignores SIGTERM for process 1 without a handler, and a pod may be deleted during startup."""
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", STARTING]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment_without_ours()
    ) as outer:
        try:
            assert outer.stdout is not None
            assert outer.stdout.readline() == "starting\n"
            children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
            (first_process,) = map(int, children)
            os.kill(first_process, signal.SIGTERM)
            assert outer.wait(20) == 128 + signal.SIGTERM
        finally:
            outer.kill()
