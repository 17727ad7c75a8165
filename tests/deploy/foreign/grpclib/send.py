"""Sends the numbers 0, 1, 2, ... to each task, and exits when all are acknowledged."""

from __future__ import annotations

import asyncio
import json

from deploy.foreign.grpclib.connect import keep_up, options
from deploy.foreign.grpclib.session import SendSession
from grpclib.client import Stream

from tuplewire.v1.messaging_grpc import MessagingStub
from tuplewire.v1.messaging_pb2 import Goodbye, Probe, SendRequest, SendResponse

PROBE_SECONDS = 1.0


async def carry(session: SendSession, stream: Stream[SendRequest, SendResponse]) -> None:
    """Send a hello, then write frames and read acknowledgements until the stream ends."""
    await stream.send_message(SendRequest(hello=session.hello))
    welcome = await stream.recv_message()
    if welcome is None:
        return
    session.welcome(welcome.welcome)
    news = asyncio.Event()
    writer = asyncio.create_task(write(session, stream, news))
    try:
        while (response := await stream.recv_message()) is not None:
            if response.HasField("drain"):
                writer.cancel()
                await asyncio.wait([writer])
                if writer.cancelled():  # otherwise it has sent a goodbye and closed this side
                    await stream.end()  # accepted messages are acknowledged before the stream ends
            elif response.HasField("ack") and response.ack.after <= session.hello.acknowledged:
                session.ack(response.ack)  # if an earlier ack was lost, the probe recovers it
                news.set()
    finally:
        writer.cancel()
        await asyncio.wait([writer])


async def write(session: SendSession, stream: Stream[SendRequest, SendResponse], news: asyncio.Event) -> None:
    """Write frames as credit and acknowledgements allow; send a probe if no acknowledgement arrives."""
    while session.pending:
        news.clear()
        while (frame := session.next_frame()) is not None:
            await stream.send_message(SendRequest(frame=frame))
        try:
            await asyncio.wait_for(news.wait(), PROBE_SECONDS)
        except TimeoutError:
            await stream.send_message(SendRequest(probe=Probe(acknowledged=session.hello.acknowledged)))
    await stream.send_message(SendRequest(goodbye=Goodbye()), end=True)


async def main() -> None:
    """Send over as many streams as needed, and print the ledger."""
    settings = options()
    session = SendSession(settings.topology, settings.id, settings.incarnation)
    for number in range(settings.count):
        for task in settings.tasks:
            session.accept(task, b"%d" % number)
    connections = await keep_up(
        settings,
        lambda channel: MessagingStub(channel).Send,
        lambda stream: carry(session, stream),
        lambda: not session.pending,
    )
    counts = {name: getattr(session, name) for name in ("accepted", "acknowledged", "refused", "pending")}
    print(json.dumps({**counts, "connections": connections}))


asyncio.run(main())
