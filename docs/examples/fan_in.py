"""Fan-in: programs in Node and in Python send to one task, which counts the messages of each.

Any language with gRPC can send: fan_in.js uses only the .proto files of Tuplewire. It needs the
Node modules @grpc/grpc-js and @grpc/proto-loader.

Run it in the root of a clone: NODE_PATH=build/node_modules python docs/examples/fan_in.py
"""

import json
import subprocess
from collections import Counter
from pathlib import Path

import tuplewire

TASK = 42
READINGS = 500
FOREIGN = ["node-1", "node-2"]


def start(worker: tuplewire.local, name: str) -> subprocess.Popen:
    """Start a program in Node that sends its readings."""
    script = Path(__file__).with_name("fan_in.js")
    return subprocess.Popen(["node", script, worker.address, worker.topology, name, str(READINGS)])


if __name__ == "__main__":
    with tuplewire.local(tasks=str(TASK)) as worker, worker.client() as client:
        started = [start(worker, name) for name in FOREIGN]
        for n in range(READINGS):
            client.send(TASK, json.dumps({"from": "python", "n": n}).encode())
        if sum(each.wait() for each in started):
            raise SystemExit("Node has failed: docs/examples/README.md has its modules and NODE_PATH")
        counts = Counter()
        with client.recv([TASK], timeout=30) as batches:
            for message in batches.messages(count=READINGS * (len(FOREIGN) + 1), seconds=30):
                counts[json.loads(message.payload)["from"]] += 1
        for name, count in sorted(counts.items()):
            print(f"{name}: {count} readings")
