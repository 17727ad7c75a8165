"""A Spark driver outside the cluster, which asks the API server of its argument for an executor.

Arguments: Spark's settings, as JSON. It ends when its standard input does.
"""

from __future__ import annotations

import json
import sys

from tuplewire_demos.local_session import local_session

if __name__ == "__main__":
    with local_session("tuplewire-pods", conf=json.loads(sys.argv[1])):
        sys.stdin.read()
