"""The pages: every name, test and link in them is there, and they keep to their form."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
STORM = ROOT / "docs" / "how-to" / "from-storm.md"
PAGES = [
    STORM,
    ROOT / "docs" / "how-to" / "topology.md",
    ROOT / "docs" / "how-to" / "transport.md",
    ROOT / "docs" / "how-to" / "secure.md",
]


def entries() -> list[tuple[str, str, str]]:
    """Return the entries from Storm's classes to ours: Storm's, ours with what differs, the test."""
    text = " ".join(STORM.read_text(encoding="utf-8").split())
    return re.findall(r"- \*\*(.*?)\*\*: (.*?)\. Shown by `([^`]+)`\.", text)


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


def test_every_entry_is_whole() -> None:
    """Every entry for Storm's users has Storm's name, ours, and a test that pytest finds by that id.

    It is one that `make test` or `make test-long` runs, and no skip is written on it.
    """
    found = entries()
    assert len(found) == STORM.read_text(encoding="utf-8").count("\n- **") > 50
    assert all("`tuplewire" in ours for _, ours, _ in found)
    tests = {shown for *_, shown in found}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]
    places = tuple(f"{place}/" for place in settings["ini_options"]["testpaths"])
    assert [test for test in tests if not test.startswith(places)] == []
    collecting = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    unskipped = ["-m", "not skip and not skipif"]
    collected = subprocess.run(
        [*collecting, *unskipped, *tests], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert collected.returncode == 0, collected.stdout + collected.stderr
    assert "deselected" not in collected.stdout, "a test that is skipped shows nothing"


ARCHITECTURE = ROOT / "docs" / "architecture.md"
DECISIONS = ROOT / "docs" / "decisions"
MOST_STEPS = 25
LONGEST_LINE = 160
MOST_WORDS = 25
SCREEN_LINES = 62


def files(ending: str) -> list[Path]:
    """Return the files of the repository that end so, but for what is built or hidden, and links."""
    places = ("clients", "demos", "deploy", "docs", "proto", "service", "tests", "topology")
    found = [
        *ROOT.glob(f"*{ending}"),
        *(path for place in places for path in (ROOT / place).rglob(f"*{ending}")),
    ]
    return sorted(path for path in found if "node_modules" not in path.parts and not path.is_symlink())


def decisions() -> dict[int, Path]:
    """Return the page of each decision, by the number in its heading."""
    pages = sorted(DECISIONS.glob("[0-9]*.md"))
    return {int(page.read_text(encoding="utf-8").split(".")[0].removeprefix("# ")): page for page in pages}


def test_walk() -> None:
    """The walk of one message takes few steps, numbered from 1, and each is a function that is there."""
    walk = re.findall(r"^\| (\d+) \| `([\w.]+)` \|", ARCHITECTURE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(number) for number, _ in walk] == list(range(1, len(walk) + 1))
    assert 10 < len(walk) <= MOST_STEPS
    for _, name in walk:
        assert callable(find(name)), name


def test_glossary_is_short() -> None:
    """The glossary has at most 25 words, each once."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^\| ([a-z ]+) \| (?!what it means)", text, re.MULTILINE)
    assert 10 < len(words) <= MOST_WORDS
    assert len(set(words)) == len(words)


def test_decisions_are_listed() -> None:
    """Each decision has a number of its own, and the list has each with its file and title."""
    pages = decisions()
    assert len(pages) == len(list(DECISIONS.glob("[0-9]*.md")))
    listed = (DECISIONS / "README.md").read_text(encoding="utf-8")
    for number, page in pages.items():
        assert page.name.startswith(f"{number:04}-")
        title = page.read_text(encoding="utf-8").splitlines()[0].partition(". ")[2]
        assert f"| {number} | [{title}]({page.name}) |" in listed


@pytest.mark.parametrize("page", decisions().values(), ids=lambda page: page.stem)
def test_a_decision_is_one_screen(page: Path) -> None:
    """A decision has a status, a date, its parts in their order, and fits on a screen."""
    text = page.read_text(encoding="utf-8")
    assert re.search(r"\bAccepted, \d{4}-\d\d-\d\d", text.splitlines()[2] + text.splitlines()[3])
    parts = [part for part in re.findall(r"^## (\w+)$", text, re.MULTILINE) if part != "Numbers"]
    assert parts == ["Context", "Decision", "Rejected", "Consequences"]
    assert len(text.splitlines()) <= SCREEN_LINES


def test_decisions_that_code_names_are_there() -> None:
    """Every page of a decision that the code refers to is there."""
    for path in (*files(".py"), *files(".proto")):
        for name in re.findall(r"docs/decisions/[\w-]+\.md", path.read_text(encoding="utf-8")):
            assert (ROOT / name).exists(), f"{path}: {name}"


@pytest.mark.parametrize("page", files(".md"), ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    """Every link from a page to a file leads somewhere."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert "://" in target or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", files(".md"), ids=lambda page: str(page.relative_to(ROOT)))
def test_tests_that_pages_name_are_there(page: Path) -> None:
    """Every file of tests that a page names is there."""
    for name in re.findall(r"`(tests/[\w/.]+)", page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), name


def test_every_guarantee_has_its_tests() -> None:
    """Each row of the guarantees has a note, which says what shows it."""
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    text = text.partition("## Guarantees")[2].partition("## Not promised yet")[0]
    rows = re.findall(r"^\| (\d+) \| [^|]+ \|", text, re.MULTILINE)
    notes = re.findall(r"^(\d+)\. (.*?)(?=^\d+\. |\Z)", text, re.MULTILINE | re.DOTALL)
    assert len(rows) > 20
    assert [number for number, _ in notes] == rows
    for number, note in notes:
        assert re.search(r"Shown\s+by\s+(`tests/|`make |the tests above|all of the above)", note), number


@pytest.mark.parametrize("page", files(".md"), ids=lambda page: str(page.relative_to(ROOT)))
def test_no_line_is_too_long(page: Path) -> None:
    """No line of a page is too long to read."""
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > LONGEST_LINE] == []
