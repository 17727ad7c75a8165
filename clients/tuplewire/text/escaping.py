"""Escaping of untrusted text for terminals and logs."""

from __future__ import annotations

import json
from typing import Any

_MOST_SHOWN = 2000


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
    if len(text) > _MOST_SHOWN:
        half = _MOST_SHOWN // 2
        text = f"{text[:half]} ... {text[-half:]}"
    if not text or not text.isprintable() or any(each in ' "=\\' for each in text):
        return escape_unprintable(json.dumps(text, ensure_ascii=False))
    return text
