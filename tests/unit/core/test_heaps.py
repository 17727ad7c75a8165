"""Reuse of freed memory by glibc, measured by the page faults of a process with large buffers."""

from __future__ import annotations

import ctypes
import os

import pytest
from helpers.tools import output_of

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallopt"), reason="NOT CHECKED: the options are glibc's"
)

ROUNDS = 50
BUFFERS = 8
"""Number of buffers in each round, of 1 MiB each."""
ARROW_ROUNDS = 10
"""Rounds before the measurement: Arrow aligns its buffers, and finds memory that fits after some rounds."""
_PROGRAM = f"""
import resource
from tuplewire.processes.heaps import reuse_buffers, share_with_arrow
def arrow(size):
    import pyarrow as pa
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
    """Return the number of new pages in a process that runs a statement and then creates buffers."""
    return int(output_of(_PROGRAM.format(statement, first, first, buffer), **environment))


def test_freed_buffers_are_used_again() -> None:
    """With the option, almost no page is new after the first buffers; without it, most pages are new."""
    assert new_pages("reuse_buffers()") < OF_BUFFERS // 100
    assert new_pages("pass") > OF_BUFFERS // 2


def test_what_is_kept_is_bounded() -> None:
    """The buffers need twice the retained memory, so the rest is new in each round."""
    assert new_pages("reuse_buffers(4 << 20)") > OF_BUFFERS // 3


@pytest.mark.parametrize("named", [None, "mimalloc"])
def test_arrow_takes_its_buffers_from_glibc(named: str | None) -> None:
    """Arrow uses glibc's retained memory, unless the environment names another allocator."""
    environment = {} if named is None else {"ARROW_DEFAULT_MEMORY_POOL": named}
    check = f"assert pa.default_memory_pool().backend_name == {named or 'system'!r}"
    statement = f"import pyarrow as pa; reuse_buffers(); share_with_arrow(); {check}"
    assert new_pages(statement, "arrow(1 << 20)", first=ARROW_ROUNDS, **environment) < OF_BUFFERS // 100


def test_the_environment_says_otherwise() -> None:
    """The environment variables of glibc take precedence."""
    least = ROUNDS * BUFFERS * 100
    assert new_pages("reuse_buffers()", MALLOC_MMAP_THRESHOLD_="65536") > least
    assert new_pages("reuse_buffers()", MALLOC_TRIM_THRESHOLD_="65536") > least
