"""Shared by both programs: the command line, the channel and reconnecting."""

from __future__ import annotations

import argparse
import asyncio
import random
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from grpclib.client import Channel, Stream, StreamStreamMethod
from grpclib.config import Configuration
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

FATAL = {
    "PROTOCOL_VERSION",
    "WRONG_TOPOLOGY",
    "STALE_INCARNATION",
    "SUPERSEDED",
    "UNKNOWN_TASK",
    "TASK_NOT_LOCAL",
}
REFUSED = {Status.FAILED_PRECONDITION, Status.INVALID_ARGUMENT}
FIRST_WAIT_SECONDS = 0.05
LONGEST_WAIT_SECONDS = 2.0


def options() -> argparse.Namespace:
    """Parse the command line: --address host:port or unix:///path, --tasks 1,2, and files for TLS."""
    parser = argparse.ArgumentParser()
    for name in ("address", "topology", "id", "ca", "cert", "key"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--tasks", type=lambda text: [int(task) for task in text.split(",")])
    parser.add_argument("--count", type=int)
    settings = parser.parse_args()
    settings.incarnation = time.time_ns()  # increases with every start
    return settings


def channel(settings: argparse.Namespace) -> Channel:
    """Return a channel with keepalive, which detects an unresponsive worker."""
    config = Configuration(
        _keepalive_time=2.0,
        _keepalive_timeout=2.0,
        _keepalive_permit_without_calls=True,
        _http2_max_pings_without_data=0,
        _http2_min_sent_ping_interval_without_data=2.0,
    )
    context = None
    if settings.ca:
        context = ssl.create_default_context(cafile=settings.ca)
        context.load_cert_chain(settings.cert, settings.key)
        context.set_alpn_protocols(["h2"])
    if settings.address.startswith("unix://"):
        return Channel(path=settings.address.removeprefix("unix://"), config=config)
    host, _, port = settings.address.rpartition(":")
    return Channel(host, int(port), ssl=context, config=config)


async def keep_up(
    settings: argparse.Namespace,
    method: Callable[[Channel], StreamStreamMethod[Any, Any]],
    carry: Callable[[Stream[Any, Any]], Awaitable[None]],
    done: Callable[[], bool],
) -> int:
    """Open one stream after another until `done()` is true; return the number of streams.

    Exits the process if the worker would reject the same request again.

    Args:
        settings: The parsed command line.
        method: Returns the stub method for a channel.
        carry: Runs the conversation over one stream; returns or raises when the stream ends.
        done: True if no further stream is needed.
    """
    wait, connections = FIRST_WAIT_SECONDS, 0
    while not done():
        if connections:
            await asyncio.sleep(random.random() * wait)
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)
        connections += 1
        connection = channel(settings)
        stream = method(connection).open()
        try:
            async with stream:
                await carry(stream)
            wait = FIRST_WAIT_SECONDS
        except GRPCError as error:
            code = (stream.trailing_metadata or {}).get("tuplewire-error")
            print(f"stream ended: {code or error.status.name}: {error.message}", file=sys.stderr)
            # grpclib loses the metadata of a stream that is reset immediately afterwards. A rejection instead
            # of the first response is also final.
            if code in FATAL or (stream.initial_metadata is None and error.status in REFUSED):
                sys.exit(1)
        except (StreamTerminatedError, OSError, AttributeError) as error:
            # grpclib 0.4 raises AttributeError if a connection is lost before its first stream.
            print(f"stream ended: {error}", file=sys.stderr)
        finally:
            connection.close()
    return connections
