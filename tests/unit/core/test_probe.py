"""The time at which a probe is due."""

from __future__ import annotations

import asyncio

import pytest

from tuplewire.connection import stream
from tuplewire.connection.stream import Silence


async def test_due_after_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each update postpones the probe; without updates, a probe is due repeatedly."""
    monkeypatch.setattr(stream, "PROBE_SECONDS", 0.1)
    loop = asyncio.get_running_loop()
    probes: list[float] = []
    silence = Silence(loop)
    watch = asyncio.create_task(silence.watch(lambda: probes.append(loop.time())))
    await asyncio.sleep(0.05)
    silence.heard()
    heard = loop.time()
    await asyncio.sleep(0.35)
    watch.cancel()
    assert len(probes) >= 2
    assert probes[0] >= heard + 0.09
    assert probes[1] >= probes[0] + 0.09
