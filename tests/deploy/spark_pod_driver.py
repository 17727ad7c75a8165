"""A Spark driver outside the cluster, which requests an executor from the API server in its settings.

Arguments: Spark's settings, as JSON. It exits when its standard input is closed.
"""

from __future__ import annotations

import json
import sys

from tuplewire_demos.local_session import local_session

if __name__ == "__main__":
    with local_session("tuplewire-pods", conf=json.loads(sys.argv[1])):
        sys.stdin.read()
