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
ARROW_ROUNDS = 10
"""Before those that count: Arrow's buffers are aligned, and where each fits shows after some rounds."""
_PROGRAM = f"""
import resource
import pyarrow as pa
from tuplewire.processes.heaps import reuse_buffers, share_with_arrow
def arrow(size):
    memoryview(buffer := pa.allocate_buffer(size)).cast("B")[:] = blank
    return buffer
blank = bytes(1 << 20)
{{}}
for number in range({ROUNDS} + {{}}):
    if number == {{}}:  # what is new the first times does not count
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    buffers = [{{}} for _ in range({BUFFERS})]
    del buffers
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
OF_BUFFERS = ROUNDS * BUFFERS * (1 << 20) // os.sysconf("SC_PAGE_SIZE")


def new_pages(statement: str, buffer: str = 'b"x" * (1 << 20)', *, first: int = 2, **environment: str) -> int:
    """Return how many pages were new to a process that has called a statement, and then made buffers."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(statement, first, first, buffer)],
        env={**os.environ, **environment},
        capture_output=True,
        check=True,
        text=True,
    )
    return int(done.stdout)


def test_freed_buffers_are_used_again() -> None:
    """Hardly a page is new once the first buffers were there; without the option nearly all are."""
    assert new_pages("reuse_buffers()") < OF_BUFFERS // 100
    assert new_pages("pass") > OF_BUFFERS // 2


def test_what_is_kept_is_bounded() -> None:
    """Twice as much as is kept comes and goes: the rest is new each time."""
    assert new_pages("reuse_buffers(4 << 20)") > OF_BUFFERS // 3


@pytest.mark.parametrize("named", [None, "mimalloc"])
def test_arrow_takes_its_buffers_from_glibc(named: str | None) -> None:
    """Unless the environment names another allocator, so that what is kept is kept for all."""
    environment = {} if named is None else {"ARROW_DEFAULT_MEMORY_POOL": named}
    check = f"assert pa.default_memory_pool().backend_name == {named or 'system'!r}"
    statement = f"reuse_buffers(); share_with_arrow(); {check}"
    new = new_pages(statement, "arrow(1 << 20)", first=ARROW_ROUNDS, **environment)
    assert new < OF_BUFFERS // 100


def test_the_environment_says_otherwise() -> None:
    """Whoever has set glibc's own variables is obeyed."""
    least = ROUNDS * BUFFERS * 100
    assert new_pages("reuse_buffers()", MALLOC_MMAP_THRESHOLD_="65536") > least
    assert new_pages("reuse_buffers()", MALLOC_TRIM_THRESHOLD_="65536") > least
