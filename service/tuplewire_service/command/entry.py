"""The entry point of the command `tuplewire`. It handles Ctrl-C even while Python imports modules."""

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
            # The kernel ignores SIGTERM for process 1 without a handler. A pod that is deleted during its
            # start would continue, receive tasks, and be killed with them after the grace period.
            signal.signal(signal.SIGTERM, lambda *_: os._exit(_TERMINATED))
        signal.signal(signal.SIGALRM, signal.default_int_handler)  # see _interrupt_again()
        sys.unraisablehook = _interrupt_again
        _open_closed_streams()
        from tuplewire_service.command import cli

        for stream in (sys.stdout, sys.stderr):  # print any string in any encoding
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure is not None:
                reconfigure(errors="backslashreplace")
        return cli.main()
    except KeyboardInterrupt:
        print("tuplewire: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except Exception:  # noqa: BLE001 - a defect; no other handler follows
        traceback.print_exc()
        return _DEFECT
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no cleanup remains


def _open_closed_streams() -> None:
    """Open /dev/null for standard streams that are closed, as by cron or a daemon.

    Call this first: the next file that is opened would get the stream's number, and its output.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _interrupt_again(unraisable: Any) -> None:
    """Repeat a Ctrl-C that Python could not raise, such as in a callback of an import."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
    else:
        sys.__unraisablehook__(unraisable)
