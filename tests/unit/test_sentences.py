"""Pages, docstrings, help and errors read easily: short sentences. Code, tables and headings do not count."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "*/README.md", "docs/**/*.md", "tests/tools/bench/README.md")
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


SOURCES = sorted(
    path
    for folder in ("clients", "demos", "docs/examples", "service", "topology")
    for path in (ROOT / folder).rglob("*.py")
    if "_pb2" not in path.name
)
_PARAMETER = re.compile(r"^ *\*{0,2}[\w, ]+: (?=\w)")
_NEXT_PARAMETER = re.compile(r"(?<=[.;])\s(?=[a-z_]+(?:, [a-z_]+)*: )")
_TABLE = re.compile(r"\S  +\S")
_BLOCK = re.compile(r"^(?:Args|Raises|Returns):$")
_SAID_TO_PEOPLE = {"help", "description", "epilog", "help_text", "about"}
"""Arguments of what makes a command's help."""


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Give each docstring, and what stands so below an attribute; a parameter is a paragraph of its own."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        if isinstance(node.value.value, str):
            lines = inspect.cleandoc(node.value.value).partition("::\n")[0].splitlines()
            prose = "\n".join(
                f"\n{_PARAMETER.sub('', line)}" if _PARAMETER.match(line) else line
                for line in lines
                if not (_BLOCK.match(line) or _TABLE.search(line))
            )
            yield _NEXT_PARAMETER.sub("\n\n", prose)


def text_of(node: ast.expr) -> str:
    """Return the text that an expression makes, with a word for what it fills in; nothing for another one."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(each) if isinstance(each, ast.Constant) else "X" for each in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return ""


def texts(tree: ast.Module) -> Iterator[str]:
    """Give the texts of errors that are raised, and of a command's help."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from map(text_of, node.exc.args)
        elif isinstance(node, ast.Call):
            yield from (text_of(each.value) for each in node.keywords if each.arg in _SAID_TO_PEOPLE)


def test_texts_of_code_are_found() -> None:
    """Each parameter of a docstring is said by itself; tables and code in one do not count."""
    tree = ast.parse(
        '''def f():
    """Do it. one: the first. two, three: others.

    Args:
        four: What
            goes on.

    ====  ====
    no    table
    """
    raise Wrong(f"{x} is " + "wrong", help="do it")
'''
    )
    (said,) = docstrings(tree)
    assert sentences(said) == ["Do it.", "one: the first.", "two, three: others.", "What goes on."]
    assert list(texts(tree)) == ["X is wrong", "do it"]


@pytest.mark.parametrize("found", [docstrings, texts], ids=["docstrings", "texts"])
def test_code_speaks_in_short_sentences(found: Callable[[ast.Module], Iterator[str]]) -> None:
    """The same bounds as for pages, over all code."""
    lengths = []
    for path in SOURCES:
        for text in found(ast.parse(path.read_text(encoding="utf-8"))):
            for sentence in sentences(text):
                lengths.append(len(sentence.split()))
                assert lengths[-1] <= MOST_WORDS, f"{path}: {sentence}"
    assert len(lengths) > 500
    assert sum(lengths) / len(lengths) < MEAN_WORDS
