"""Text from elsewhere, as a terminal or a line of a log may have it."""

from __future__ import annotations

import json
from typing import Any

_MOST_SHOWN = 2000


def shown(text: str, keep: str = "") -> str:
    r"""Return a text with everything escaped that is no printable character: ESC becomes \x1b.

    keep: characters that stay as they are, such as a line's end.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def shown_value(value: Any) -> str:
    """Return a value as it stands behind `key=`: on one line, quoted where needed, the middle left out."""
    text = str(value)
    if len(text) > _MOST_SHOWN:
        half = _MOST_SHOWN // 2
        text = f"{text[:half]} ... {text[-half:]}"
    if not text or not text.isprintable() or any(each in ' "=\\' for each in text):
        return shown(json.dumps(text, ensure_ascii=False))
    return text
