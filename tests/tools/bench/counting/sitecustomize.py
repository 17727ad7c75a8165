"""Python runs this module at the start of every process of `make bench-calls`, including workers.

It counts the calls of Python functions in all threads, by the number in the shared byte, and writes them at
exit. It counts none while the number is 0. A coroutine counts again each time that it continues.
"""

import atexit
import json
import mmap
import os
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_folder = Path(os.environ["BENCH_CALLS"])
with (_folder / "switch").open("r+b") as _file:
    _switch = mmap.mmap(_file.fileno(), 1)
_calls: dict[tuple[int, CodeType], int] = {}
_made_by: dict[CodeType, CodeType] = {}


def _count(frame: FrameType, event: str, _: Any) -> None:
    if event == "call" and (part := _switch[0]):
        code = frame.f_code
        _calls[part, code] = _calls.get((part, code), 0) + 1
        # The file of a generated method, such as a dataclass's __init__, is only known from its caller.
        if code.co_filename == "<string>" and frame.f_back is not None:
            _made_by[code] = frame.f_back.f_code


def _save() -> None:
    sys.setprofile(None)
    words = [each for each in sys.orig_argv if each.startswith(("--worker-id=", "--role="))]
    counts = [
        (part, _made_by.get(code, code).co_filename, code.co_qualname, code.co_firstlineno, count)
        for (part, code), count in list(_calls.items())
    ]
    (_folder / f"{''.join(words).rpartition('=')[2]}.json").write_text(json.dumps(counts))


if any(each.startswith(("--worker-id=", "--role=")) for each in sys.orig_argv):
    atexit.register(_save)
    threading.setprofile(_count)
    sys.setprofile(_count)
