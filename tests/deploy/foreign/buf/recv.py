"""Receives the numbers 0, 1, 2, ... of each task with `buf curl`, and acknowledges each frame."""

from __future__ import annotations

import base64
import json
from typing import Any

from deploy.foreign.buf.conversation import Conversation, options

WINDOW_MESSAGES = 100


def cursors(received: dict[int, int]) -> list[dict[str, Any]]:
    """Acknowledge all received messages, and grant credit for another window."""
    return [
        {
            "task": task,
            "acknowledged": sequence,
            "received": sequence,
            "credit": sequence + WINDOW_MESSAGES,
            "creditBytes": 1024 * 1024,
        }
        for task, sequence in received.items()
    ]


def main() -> None:
    """Receive over one stream, and print a report."""
    settings = options()
    received = dict.fromkeys(settings.tasks, 0)
    numbers = dict.fromkeys(settings.tasks, 0)
    problems: list[str] = []
    with Conversation("Recv", settings) as stream:
        stream.say(
            subscribe={
                "protocolVersion": 1,
                "topology": settings.topology,
                "consumerId": settings.id,
                "incarnation": settings.incarnation,
                "tasks": cursors(received),
            }
        )
        for start in stream.hear()["subscribed"]["tasks"]:
            received[start.get("task", 0)] = int(start.get("received", 0))
        while not problems and any(number < settings.count for number in numbers.values()):
            response = stream.hear()
            for group in response.get("frame", {}).get("groups", ()):
                task, data, end = group.get("task", 0), base64.b64decode(group["data"]), 0
                if int(group["firstSequence"]) != received[task] + 1:
                    problems.append(f"task {task}: a gap before {group['firstSequence']}")
                for length in group["lengths"]:
                    number = int(data[end : end + length])
                    end += length
                    if number != numbers[task]:
                        problems.append(f"task {task}: {number} came, not {numbers[task]}")
                    numbers[task] += 1
                received[task] += len(group["lengths"])
            if "frame" in response or "probe" in response:
                stream.say(progress={"tasks": cursors(received)})
    print(json.dumps({"received": numbers, "repeated": 0, "problems": problems, "connections": 1}))


main()
