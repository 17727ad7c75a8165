"""The beginning and the end of the command `tuplewire`: Ctrl-C while Python still reads our modules, too."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import Any

_DEFECT = 70
_INTERRUPTED = 130
_TERMINATED = 128 + signal.SIGTERM
_AGAIN_SECONDS = 0.01


def main() -> int:
    """Run the command and return its exit code; see tuplewire_service.command.cli."""
    try:
        if os.getpid() == 1:
            # The kernel ignores SIGTERM for process 1 until there is a handler. A pod that was deleted while
            # it started would go on, take tasks, and be killed with them at the end of the grace period.
            signal.signal(signal.SIGTERM, lambda *_: os._exit(_TERMINATED))
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        sys.unraisablehook = _interrupt_again
        _open_closed_streams()
        from tuplewire_service.command import cli

        for stream in (sys.stdout, sys.stderr):  # for any encoding
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure is not None:
                reconfigure(errors="backslashreplace")
        return cli.main()
    except KeyboardInterrupt:
        print("tuplewire: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except Exception:  # noqa: BLE001 - a defect, and nobody is left to tell
        traceback.print_exc()
        return _DEFECT
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # there is nothing left to put in order


def _open_closed_streams() -> None:
    """Have standard streams that are closed, as by cron or a daemon, read nothing and write nowhere.

    Before anything else is opened: it would get the number of the stream, and what is printed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _interrupt_again(lost: Any) -> None:
    """Bring a Ctrl-C again that came where Python cannot raise it: in a callback of an import, say."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
    else:
        sys.__unraisablehook__(lost)
