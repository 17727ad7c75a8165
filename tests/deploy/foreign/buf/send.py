"""Sends the numbers 0, 1, 2, ... to each task with `buf curl`, one acknowledged frame at a time."""

from __future__ import annotations

import base64
import json
from typing import Any

from deploy.foreign.buf.conversation import Conversation, options

FRAME_MESSAGES = 100


def main() -> None:
    """Send over one stream, and print the ledger."""
    settings = options()
    sent = dict.fromkeys(settings.tasks, 0)
    sequence = acknowledged = refused = 0
    with Conversation("Send", settings) as stream:
        stream.say(
            hello={
                "protocolVersion": 1,
                "topology": settings.topology,
                "senderId": settings.id,
                "incarnation": settings.incarnation,
            }
        )
        welcome = stream.hear()["welcome"]
        credit = dict.fromkeys(settings.tasks, int(welcome["initialCredit"]["messages"]))
        while acknowledged < sequence or any(number < settings.count for number in sent.values()):
            groups: list[dict[str, Any]] = []
            for task, number in sent.items():
                end = min(settings.count, credit[task], number + FRAME_MESSAGES)
                payloads = [b"%d" % each for each in range(number, end)]
                if payloads and acknowledged == sequence:
                    data = base64.b64encode(b"".join(payloads)).decode()
                    groups.append({"task": task, "lengths": list(map(len, payloads)), "data": data})
                    sent[task] = end
            if groups:
                sequence += 1
                stream.say(frame={"sequence": sequence, "groups": groups})
            ack = stream.hear().get("ack", {})
            acknowledged = max(acknowledged, int(ack.get("sequence", 0)))
            credit.update({grant.get("task", 0): int(grant["messages"]) for grant in ack.get("credits", ())})
            refused += sum(int(each["messages"]) for each in ack.get("refusals", ()))
    total = sum(sent.values())
    print(
        json.dumps(
            {
                "accepted": total,
                "acknowledged": total - refused,
                "refused": refused,
                "pending": 0,
                "connections": 1,
            }
        )
    )


main()
