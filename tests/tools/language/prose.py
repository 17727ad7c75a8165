"""Reads the prose of pages and of Python code: without code, tables, headings and links."""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterator

_CODE = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+")
_LABEL = re.compile(r"^\*\*[^*]+\*\*(?: \([^)]*\))?: ")
_END = re.compile(r"(?<=[.!?])[)\"*]*\s+(?=[*\"(`\[]*[A-Z0-9`])")


def without_code(text: str) -> str:
    """Return a page without its code blocks."""
    return _CODE.sub("", text)


def paragraphs(text: str) -> Iterator[str]:
    """Yield each paragraph and list item as one line, with a word for each piece of code or link."""
    gathered: list[str] = []
    for line in [*_COMMENT.sub("", without_code(text)).splitlines(), ""]:
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


_PARAMETER = re.compile(r"^ *\*{0,2}[\w, ]+: (?=\w)")
_NEXT_PARAMETER = re.compile(r"(?<=[.;])\s(?=[a-z_]+(?:, [a-z_]+)*: )")
_TABLE = re.compile(r"\S  +\S")
_BLOCK = re.compile(r"^(?:Args|Raises|Returns):$")
_FOR_USERS = {"help", "description", "epilog", "help_text", "about"}
"""Keyword arguments that contain a command's help."""


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield each docstring, including docstrings of attributes; a parameter is a separate paragraph."""
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
    """Return the text of an expression, with X for each inserted value; empty for other expressions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(each) if isinstance(each, ast.Constant) else "X" for each in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return ""


def texts(tree: ast.Module) -> Iterator[str]:
    """Yield the texts of raised errors, and of a command's help."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from map(text_of, node.exc.args)
        elif isinstance(node, ast.Call):
            yield from (text_of(each.value) for each in node.keywords if each.arg in _FOR_USERS)


_DIRECTIVE = re.compile(r"#\s*(?:!|type:|noqa|pragma|mypy|ruff|fmt:)")


def comments(source: str) -> Iterator[str]:
    """Yield each comment of a module; comments on adjacent lines are one."""
    block: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or _DIRECTIVE.match(token.string):
            continue
        if block and token.start[0] > last + 1:
            yield " ".join(block)
            block = []
        block.append(token.string.lstrip("# "))
        last = token.start[0]
    yield " ".join(block)


def proto_comments(source: str) -> Iterator[str]:
    """Yield the comments of a proto file, in blocks."""
    lines = [line.partition("//")[2].strip() if "//" in line else "" for line in source.splitlines()]
    yield from paragraphs("\n".join(lines))
