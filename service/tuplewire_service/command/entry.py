"""The beginning and the end of the command `tuplewire`: Ctrl-C while Python still reads our modules, too."""

from __future__ import annotations

import signal
import sys
import traceback

_DEFECT = 70
_INTERRUPTED = 130


def main() -> int:
    """Run the command and return its exit code; see tuplewire_service.command.cli."""
    try:
        from tuplewire_service.command import cli

        for stream in (
            sys.stdout,
            sys.stderr,
        ):  # for any encoding
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
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # there is nothing left to put in order
