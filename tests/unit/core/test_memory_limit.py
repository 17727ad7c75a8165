"""The memory limit of a process, as its control groups report it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tuplewire_service.control.memory import memory_limit

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("process", "files", "limit"),
    [
        ("0::/pod/container", {"pod/container/memory.max": "1000", "pod/memory.max": "max"}, 1000),
        ("0::/pod/container", {"pod/container/memory.max": "3000", "pod/memory.max": "2000"}, 2000),
        ("0::/of/the/host", {"memory.max": "1000"}, 1000),  # a container sees its own group as the root
        ("0::/", {"memory.max": "max"}, MACHINE),
        ("0::/", {}, MACHINE),
        ("4:memory:/pod\n1:cpu:/pod", {"memory/pod/memory.limit_in_bytes": "1000"}, 1000),
        ("4:memory:/", {"memory/memory.limit_in_bytes": str(2**63 - 4096)}, MACHINE),
    ],
)
def test_the_smallest_limit_counts(process: str, files: dict[str, str], limit: int, tmp_path: Path) -> None:
    """The limits of the group and its parents apply, in both versions of control groups."""
    (tmp_path / "cgroup").write_text(f"{process}\n")
    for name, content in files.items():
        file = tmp_path / "groups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")
    assert memory_limit(tmp_path / "cgroup", tmp_path / "groups") == limit


def test_a_system_without_groups_has_what_there_is(tmp_path: Path) -> None:
    """Without control groups, the machine's memory is the limit."""
    assert memory_limit(tmp_path / "none", tmp_path) == MACHINE
