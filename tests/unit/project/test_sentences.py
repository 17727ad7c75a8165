"""Sentences in pages, docstrings, help and errors are short. Code, tables and headings do not count."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from language.prose import docstrings, sentences, texts, without_code

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    path
    for pattern in ("*.md", "*/README.md", "docs/**/*.md", "tests/tools/bench/README.md")
    for path in ROOT.glob(pattern)
    if "build" not in path.parts
)
MEAN_WORDS = 18
MOST_WORDS = 35
LONGEST_LINE = 100


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_easy_to_read(page: Path) -> None:
    """A sentence has at most 35 words, on average fewer than 18; a line of prose has 100 characters."""
    text = page.read_text(encoding="utf-8")
    lengths = {sentence: len(sentence.split()) for sentence in sentences(text)}
    assert [sentence for sentence, words in lengths.items() if words > MOST_WORDS] == []
    assert sum(lengths.values()) / max(1, len(lengths)) < MEAN_WORDS
    lines = [
        line for line in without_code(text).splitlines() if not line.lstrip().startswith(("|", "#", "<!--"))
    ]
    assert [line for line in lines if len(line) > LONGEST_LINE and " " in line.strip()] == []


SOURCES = sorted(
    path
    for folder in ("clients", "demos", "docs/examples", "service", "topology")
    for path in (ROOT / folder).rglob("*.py")
    if "_pb2" not in path.name
)


def test_code_speaks_in_short_sentences() -> None:
    """Sentences in code have the same limits as sentences on pages."""
    lengths: dict[Callable[[ast.Module], Iterator[str]], list[int]] = {docstrings: [], texts: []}
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for kind, found in lengths.items():
            for sentence in (each for text in kind(tree) for each in sentences(text)):
                found.append(len(sentence.split()))
                assert found[-1] <= MOST_WORDS, f"{path}: {sentence}"
    for found in lengths.values():
        assert len(found) > 500
        assert sum(found) / len(found) < MEAN_WORDS
