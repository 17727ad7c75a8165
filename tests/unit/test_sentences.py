"""The pages read easily: short sentences and short lines. Code, tables and headings do not count."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "*/README.md", "docs/**/*.md", "tests/bench/README.md")
    for path in ROOT.glob(pattern)
    if "build" not in path.parts
)
MEAN_WORDS = 18
MOST_WORDS = 35
LONGEST_LINE = 100
_CODE = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+")
_LABEL = re.compile(r"^\*\*[^*]+\*\*(?: \([^)]*\))?: ")
_END = re.compile(r"(?<=[.!?])[)\"*]*\s+(?=[*\"(`\[]*[A-Z0-9`])")


def paragraphs(text: str) -> Iterator[str]:
    """Give each paragraph and item of a list as one line, with a word for each piece of code or link."""
    gathered: list[str] = []
    for line in [*_COMMENT.sub("", _CODE.sub("", text)).splitlines(), ""]:
        ends = not line.strip() or line.lstrip().startswith(("|", "#")) or _ITEM.match(line)
        if ends and gathered:
            yield " ".join(gathered)
            gathered = []
        if line.strip() and not line.lstrip().startswith(("|", "#")):
            gathered.append(_ITEM.sub("", line).strip())


def sentences(text: str) -> list[str]:
    """Return the sentences of a page."""
    found = []
    for paragraph in paragraphs(text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "`code`", paragraph))
        plain = _LABEL.sub("", plain)
        found += _END.split(plain)
    return [sentence for sentence in found if sentence]


def test_sentences_are_found() -> None:
    """Code, tables, headings, labels and what is behind a link do not count; an item ends by itself."""
    page = "# Not this\n\nOne `f(a, b)` and\ntwo. [Three four](x.md).\n\n| no | t |\n"
    page += "\n- **no** (no): five\n- six\n\n```sh\nno\n```\n"
    assert sentences(page) == ["One `code` and two.", "Three four.", "five", "six"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_are_short(page: Path) -> None:
    """A sentence has at most 35 words, and on average fewer than 18."""
    found = sentences(page.read_text(encoding="utf-8"))
    lengths = [len(sentence.split()) for sentence in found]
    assert [sentence for sentence in found if len(sentence.split()) > MOST_WORDS] == []
    assert sum(lengths) / max(1, len(lengths)) < MEAN_WORDS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_are_short(page: Path) -> None:
    """A line of prose has at most 100 characters; one word, such as a link, may have more."""
    prose = _CODE.sub("", page.read_text(encoding="utf-8"))
    lines = [line for line in prose.splitlines() if not line.lstrip().startswith(("|", "#", "<!--"))]
    assert [line for line in lines if len(line) > LONGEST_LINE and " " in line.strip()] == []
