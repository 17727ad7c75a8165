"""What glibc does with memory that is freed, by the page faults of a process that moves large buffers."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallopt"), reason="NOT CHECKED: the options are glibc's"
)

ROUNDS = 50
BUFFERS = 8
"""Of 1 MiB each, in every round."""
_PROGRAM = f"""
import resource
from tuplewire.heaps import reuse_buffers
{{}}
for number in range({ROUNDS} + 2):
    if number == 2:  # what is new the first time does not count
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    buffers = [b"x" * (1 << 20) for _ in range({BUFFERS})]
    del buffers
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def new_pages(statement: str, **environment: str) -> int:
    """Return how many pages were new to a process that has called a statement first."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(statement)],
        env={**os.environ, **environment},
        capture_output=True,
        check=True,
        text=True,
    )
    return int(done.stdout)


def test_freed_buffers_are_used_again() -> None:
    """Hardly a page is new once the first buffers were there; without the option nearly all are."""
    of_buffers = ROUNDS * BUFFERS * (1 << 20) // os.sysconf("SC_PAGE_SIZE")
    assert new_pages("reuse_buffers()") < of_buffers // 100
    assert new_pages("pass") > of_buffers // 2


def test_the_environment_says_otherwise() -> None:
    """Whoever has set glibc's own variables is obeyed."""
    least = ROUNDS * BUFFERS * 100
    assert new_pages("reuse_buffers()", MALLOC_MMAP_THRESHOLD_="65536") > least
    assert new_pages("reuse_buffers()", MALLOC_TRIM_THRESHOLD_="65536") > least
