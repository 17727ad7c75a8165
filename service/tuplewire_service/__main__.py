"""`python -m tuplewire_service` is the command `tuplewire`."""

from __future__ import annotations

import sys

from tuplewire_service.command.entry import main

if __name__ == "__main__":
    sys.exit(main())
