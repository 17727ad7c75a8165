"""Values in texts for users: counts with their nouns, untrusted text, and tables for notebooks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from textwrap import TextWrapper
from typing import Any

_MAX_FIELD_CHARS = 2000
_MAX_IN_CELL = 80
"""The maximum number of characters in a cell."""
_COMMAND = re.compile(r"example: .+|pip install \S+|tuplewire [a-z -]*--\S+|tuplewire \S+")


def counted(count: int, noun: str) -> str:
    """Return a count and its noun: `1 message`, `2,000 messages`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def encodable(text: str) -> str:
    r"""Return a string with lone surrogates escaped, such as \udcff, because UTF-8 cannot encode them."""
    return text.encode(errors="backslashreplace").decode()


def escape_unprintable(text: str, keep: str = "") -> str:
    r"""Return a string with unprintable characters escaped, such as \x1b, except `keep`."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def escape_value(value: Any) -> str:
    """Return a value for a `key=value` field: on one line, quoted if necessary, long values shortened."""
    text = str(value)
    if len(text) > _MAX_FIELD_CHARS:
        half = _MAX_FIELD_CHARS // 2
        text = f"{text[:half]} ... {text[-half:]}"
    if not text or not text.isprintable() or any(each in ' "=\\' for each in text):
        return escape_unprintable(json.dumps(text, ensure_ascii=False))
    return text


def fold(text: str, width: int, indent: int = 0) -> str:
    """Wrap each line of escaped text; indent the rest. Words and commands stay whole, to be copied."""
    fold = TextWrapper(width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    whole = _COMMAND.sub(lambda command: command[0].replace(" ", "\xa0"), text)
    return "\n".join(map(fold.fill, whole.split("\n"))).replace("\xa0", " ")


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table with a title. Bytes are decoded as UTF-8, with escapes for other bytes."""
    head = "".join(f"<th>{_cell(each)}</th>" for each in header)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(each)}</td>' for each in row)}</tr>" for row in rows)
    caption = f"<caption>{_cell(title)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    if isinstance(value, bytes):
        value = value[: 4 * _MAX_IN_CELL].decode(errors="backslashreplace")
    text = str(value)
    return escape(escape_unprintable(text if len(text) <= _MAX_IN_CELL else f"{text[:_MAX_IN_CELL]}..."))
