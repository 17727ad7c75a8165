"""Trace contexts in groups of messages, sampling, and disabled tracing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from helpers.executors import alone
from helpers.tools import output_of
from helpers.words import topology as words
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tuplewire import Client, TaskGroup, TaskMessageBatch, tracing
from tuplewire.errors import BufferFullError, ConfigError
from tuplewire.tracing import TracingSettings
from tuplewire.tracing.context import MAX_CONTEXTS, context_of, encode_context, sampled_contexts, with_context
from tuplewire.tracing.spans import Tracing
from tuplewire.values.batch import as_groups
from tuplewire.values.headers import decode_headers, encode_headers
from tuplewire_service.messaging.local import LocalContext
from tuplewire_service.worker.worker import Worker
from tuplewire_service.worker.worker_settings import WorkerSettings

CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3)


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    """Run each test with tracing disabled."""
    tracing.disable()
    yield
    tracing.disable()


@given(st.none() | st.binary(max_size=5), HEADERS, HEADERS)
def test_a_context_is_found_among_other_headers(
    key: bytes | None, before: list[tuple[str, bytes]], after: list[tuple[str, bytes]]
) -> None:
    """A context is found at any position, in the encoding of any protobuf library."""
    encoded = encode_headers(key, [*before, ("traceparent", CONTEXT.encode()), *after])
    assert context_of(encoded) == CONTEXT.encode()
    assert sampled_contexts(encoded * 3) == {CONTEXT.encode(): 3}


@pytest.mark.parametrize(
    "value",
    [
        CONTEXT.removesuffix("1") + "0",  # not sampled by its sender
        CONTEXT.replace("00-", "ff-", 1),
        CONTEXT.upper(),
        "00",
        "",
    ],
)
def test_what_is_no_sampled_context_is_left_alone(value: str) -> None:
    """A context that is invalid or not sampled creates no spans."""
    assert sampled_contexts(encode_headers(None, [("traceparent", value.encode())])) == {}


def test_no_more_contexts_than_are_looked_at() -> None:
    """Untrusted senders cannot increase the number of spans per group beyond the limit."""
    many = b"".join(encode_context(f"00-{each + 1:032x}-00f067aa0ba902b7-01") for each in range(200))
    assert len(sampled_contexts(many)) == MAX_CONTEXTS


@given(st.lists(st.tuples(st.binary(max_size=5), st.none() | st.binary(max_size=5), HEADERS), min_size=1))
def test_a_group_gets_a_context(messages: list[tuple[bytes, bytes | None, list[tuple[str, bytes]]]]) -> None:
    """Each message has the context after its key and headers, and an unchanged payload."""
    payloads, keys, headers = map(list, zip(*messages, strict=True))
    for group in TaskMessageBatch.from_columns(7, payloads, keys=keys, headers=headers).groups:
        traced = with_context(group, encode_context(CONTEXT, "a=1"), 10_000).validate()
        assert traced.payloads() == group.payloads()
        before = group.encoded_headers() or [b""] * len(group)
        for old, new in zip(before, traced.encoded_headers() or (), strict=True):
            key, pairs = decode_headers(old)
            own = (("traceparent", CONTEXT.encode()), ("tracestate", b"a=1"))
            assert decode_headers(new) == (key, (*pairs, *own))


def test_a_context_makes_no_message_too_large() -> None:
    """A message without space for a context is sent without one."""
    group = TaskGroup.of(1, [b"x" * 100])
    assert with_context(group, encode_context(CONTEXT), 100 + len(encode_context(CONTEXT)) - 1) is group
    assert with_context(group, encode_context(CONTEXT), 100 + len(encode_context(CONTEXT))) is not group


def test_a_programs_own_context_stays() -> None:
    """A group that already has a context is sent unchanged."""
    (group,) = as_groups(1, b"x", None, None, [("traceparent", b"mine")])
    assert with_context(group, encode_context(CONTEXT), 1000) is group


async def test_off_means_no_observer() -> None:
    """If tracing is disabled, no component has an observer."""
    client = Client("127.0.0.1:1")
    client._get_buffer()
    assert client._tracing is None
    subscription = client.recv([1])
    assert subscription._tracing is None
    subscription.close()
    client.close(0)

    context = LocalContext()
    router = Worker(WorkerSettings(worker_id="w", topology="t"), context, 1).router
    assert (router.observer, router.queues.observer) == (None, None)
    assert router.pressure.find_example is None
    await asyncio.to_thread(context.term)

    assert alone(words()).transfer.tracing is None


def test_a_send_has_a_span_and_a_refused_try_send_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A try_send() that returns False creates no span."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("tuplewire.client.get_tracing", lambda: Tracing(provider, 1.0))
    client = Client("127.0.0.1:1", max_pending_messages=1)
    assert client.try_send(1, b"there is room for one")
    assert not client.try_send(2, b"x")
    with pytest.raises(BufferFullError):
        client.send(3, b"x", timeout=0)
    client.close(0)
    told = [(span.name, span.status.status_code) for span in exporter.get_finished_spans()]
    assert told == [("send 1", StatusCode.UNSET), ("send 3", StatusCode.ERROR)]


def test_variables() -> None:
    """A program reads two variables, and an invalid value is named."""
    ratio = "TUPLEWIRE_TRACE_SAMPLE_RATIO"
    read = TracingSettings.from_environment({"TUPLEWIRE_TRACING": "true", ratio: "0.25"})
    assert (read.tracing, read.trace_sample_ratio) == (True, 0.25)
    with pytest.raises(ConfigError, match=f"{ratio} must be a number from 0 to 1, not '2'"):
        TracingSettings.from_environment({ratio: "2"})
    with pytest.raises(ConfigError, match="trace_sample_ratio must be a number from 0 to 1"):
        tracing.enable(sample_ratio=-1)


_FORKED = """
import os, threading

from tuplewire import tracing

held, forked = threading.Event(), threading.Event()


def hold():
    with tracing._lock:
        held.set()
        forked.wait()


thread = threading.Thread(target=hold)
thread.start()
held.wait()
if (child := os.fork()) == 0:
    os._exit(tracing.get_tracing() is not None)
forked.set()
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_does_not_wait_for_a_thread_of_its_parent() -> None:
    """A child reads the settings even if another thread was reading them during the fork."""
    assert output_of(_FORKED) == "0\n"
