"""The pages for users: every name in them is there, every test that they refer to, and their programs run."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
STORM = ROOT / "STORM.md"
PAGES = [
    STORM,
    ROOT / "clients" / "TOPOLOGY.md",
    ROOT / "service" / "TRANSPORT.md",
    ROOT / "service" / "SECURITY.md",
]


def rows() -> list[list[str]]:
    """Return the cells of the table from Storm's classes to ours: Storm's, ours, what differs, the test."""
    tables = [
        line.strip("|").split("|")
        for line in STORM.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and not line.startswith("| Storm |")
    ]
    return [[cell.strip() for cell in cells] for cells in tables]


def find(name: str) -> Any:
    """Return what a dotted name stands for: attributes of the longest module that there is."""
    module, _, attribute = name.rpartition(".")
    try:
        return import_module(name)
    except ModuleNotFoundError:
        return getattr(find(module), attribute)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names(page: Path) -> None:
    """Every dotted name of ours on a page is there."""
    for name in set(re.findall(r"`(tuplewire(?:_service)?(?:\.\w+)+)`", page.read_text(encoding="utf-8"))):
        find(name)


def test_table() -> None:
    """Every row of the table has Storm's name, ours, and a test that is there."""
    table = rows()
    assert len(table) > 50
    for row in table:
        _, ours, _, shown = row
        assert "`tuplewire" in ours, row
        file, _, test = shown.strip("`").partition("::")
        assert re.search(rf"(def|class) {test}\b", (ROOT / file).read_text(encoding="utf-8")), row


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.name)
def test_programs(page: Path) -> None:
    """Every program on a page runs by itself."""
    programs = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert programs
    for program in programs:
        exec(compile(program, str(page), "exec"), {"__name__": "example"})  # noqa: S102 - our own docs
