"""Errors with a message that is complete only some time after the cause."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tuplewire.errors import TuplewireError
from tuplewire_service.testing import eventually


def comes_to_say(attempt: Callable[[], object], error: type[TuplewireError], words: str) -> None:
    """Retry until this error has these words; on a busy machine the first attempts may not know the cause."""

    def said() -> str:
        with pytest.raises(error) as caught:
            attempt()
        return str(caught.value)

    eventually(lambda: re.search(words, said()), what=words)
