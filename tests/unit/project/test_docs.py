"""The pages: their names, tests and links exist, and their form is correct. The same for scripts."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
STORM = ROOT / "docs" / "how-to" / "from-storm.md"
PAGES = [
    STORM,
    ROOT / "docs" / "how-to" / "topology.md",
    ROOT / "docs" / "how-to" / "transport.md",
    ROOT / "docs" / "how-to" / "secure.md",
]


def entries() -> list[tuple[str, str, str]]:
    """Return the entries for Storm's classes: Storm's name, Tuplewire's with the differences, the test."""
    text = " ".join(STORM.read_text(encoding="utf-8").split())
    return re.findall(r"- \*\*(.*?)\*\*: (.*?)\. Tested by `([^`]+)`\.", text)


def find(name: str) -> Any:
    """Return the object with a dotted name, from the longest module that exists."""
    module, _, attribute = name.rpartition(".")
    try:
        return import_module(name)
    except ModuleNotFoundError:
        return getattr(find(module), attribute)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names(page: Path) -> None:
    """Every dotted Tuplewire name on a page exists."""
    for name in set(re.findall(r"`(tuplewire(?:_service)?(?:\.\w+)+)`", page.read_text(encoding="utf-8"))):
        find(name)


def test_every_entry_is_whole() -> None:
    """Every entry for Storm's users has Storm's name, Tuplewire's, and a test that is not skipped."""
    found = entries()
    assert len(found) == STORM.read_text(encoding="utf-8").count("\n- **") > 50
    assert all("`tuplewire" in ours for _, ours, _ in found)
    tests = {shown for *_, shown in found}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]
    places = tuple(f"{place}/" for place in settings["ini_options"]["testpaths"])
    assert [test for test in tests if not test.startswith(places)] == []
    shared = ("service/tuplewire_service/testing/conformance.py", "tests/helpers/runtimes.py")
    for path, *names in (test.split("::") for test in tests):
        text = "".join((ROOT / each).read_text(encoding="utf-8") for each in (path, *shared))
        for name in names:
            found = re.findall(rf"^((?: *@.*\n)*) *(?:class|(?:async )?def) {name}\b", text, re.MULTILINE)
            assert ["skip" in marks for marks in found] == [False], f"{path}::{name}"


DESIGN = ROOT / "docs" / "design"
LONGEST_LINE = 160
MOST_WORDS = 25


def files(ending: str) -> list[Path]:
    """Return the repository's files with an ending, except built and hidden files and links."""
    places = ("clients", "demos", "deploy", "docs", "proto", "service", "tests", "topology")
    found = [
        *ROOT.glob(f"*{ending}"),
        *(path for place in places for path in (ROOT / place).rglob(f"*{ending}")),
    ]
    return sorted(path for path in found if "node_modules" not in path.parts and not path.is_symlink())


DESIGN_PAGES = [page for page in sorted(DESIGN.glob("*.md")) if page.name != "README.md"]


def test_glossary_is_short() -> None:
    """The glossary has at most 25 words, each once."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^\| ([a-z ]+) \| (?!what it means)", text, re.MULTILINE)
    assert 10 < len(words) <= MOST_WORDS
    assert len(set(words)) == len(words)


@pytest.mark.parametrize("page", DESIGN_PAGES, ids=lambda page: page.stem)
def test_a_design_page(page: Path) -> None:
    """A design page is in the list, has a section of rejected designs, and is named in a module."""
    assert f"]({page.name}) |" in (DESIGN / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)[-1] == "Rejected"
    assert any(f"docs/design/{page.name}" in path.read_text(encoding="utf-8") for path in files(".py"))


def test_design_pages_that_code_names_are_there() -> None:
    """Every design page that the code names exists."""
    for path in (*files(".py"), *files(".proto")):
        for name in re.findall(r"docs/design/[\w-]+\.md", path.read_text(encoding="utf-8")):
            assert (ROOT / name).exists(), f"{path}: {name}"


@pytest.mark.parametrize("page", files(".md"), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page(page: Path) -> None:
    """Files that a page links to, and tests that it names, exist; no line is too long to read."""
    text = page.read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if len(line) > LONGEST_LINE] == []
    for name in re.findall(r"`(tests/[\w/.]+)", text):
        assert (ROOT / name).exists(), name
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        assert "://" in target or (page.parent / target).exists(), target


def test_every_guarantee_has_its_tests() -> None:
    """Each guarantee has a note that names its tests."""
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    text = text.partition("## What is guaranteed")[2].partition("## Not promised yet")[0]
    rows = re.findall(r"^\| (\d+) \| [^|]+ \|", text, re.MULTILINE)
    notes = re.findall(r"^(\d+)\. (.*?)(?=^\d+\. |\Z)", text, re.MULTILINE | re.DOTALL)
    assert len(rows) > 20
    assert [number for number, _ in notes] == rows
    for number, note in notes:
        assert re.search(r"Tested\s+by\s+`(tests/|make )", note), number


@pytest.mark.parametrize(
    "script", [*ROOT.glob("tests/*.sh"), *ROOT.glob("deploy/*.sh")], ids=lambda each: each.name
)
def test_what_it_sources_is_there(script: Path) -> None:
    """Every sourced file exists, relative to the repository's root."""
    sourced = re.findall(r"^(?:\.|source) (\S+)$", script.read_text(encoding="utf-8"), re.MULTILINE)
    assert [each for each in sourced if not (ROOT / each).is_file()] == []
    assert sourced or script.parent.name == "deploy" or script.name == "environments.sh"
