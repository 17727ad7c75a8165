"""In-memory streams, which share the event loop fairly."""

from __future__ import annotations

import asyncio

from tuplewire.connection.memory_stream import MemoryStream


def test_others_have_their_turn_between_two_messages() -> None:
    """A reader with many messages does not block the event loop."""

    async def main() -> list[bytes | None]:
        near, far = MemoryStream(), MemoryStream()
        near.join(far)
        for letter in (b"a", b"b", b"c"):
            await near.write(letter)
        seen: list[bytes | None] = []

        async def other() -> None:
            for _ in range(3):
                seen.append(None)
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        for _ in range(3):
            seen.append(await far.read())  # noqa: PERF401 - in the order of the turns
        await task
        return seen

    assert asyncio.run(main()) == [None, b"a", None, b"b", None, b"c"]
