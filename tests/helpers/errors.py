"""Errors whose words are known a moment after the cause."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tuplewire.errors import TuplewireError
from tuplewire_service.testing import eventually


def comes_to_say(attempt: Callable[[], object], error: type[TuplewireError], words: str) -> None:
    """Try until this error says these words; on a busy machine the first tries may know no cause yet."""

    def said() -> str:
        with pytest.raises(error) as caught:
            attempt()
        return str(caught.value)

    eventually(lambda: re.search(words, said()), what=words)
