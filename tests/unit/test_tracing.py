"""What a trace context is in a group of messages, what is sampled, and what is off."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuplewire import Client, TaskGroup, TaskMessageBatch, tracing
from tuplewire.batch import as_groups
from tuplewire.connection.receiver import Receiver
from tuplewire.connection.sender import Sender
from tuplewire.errors import ConfigError
from tuplewire.headers import decode_headers, encode_headers
from tuplewire.subscription import Subscription
from tuplewire.topology.collector import Outbox
from tuplewire.topology.running.executor_worker import _parts
from tuplewire.topology.running.tuple_transfer import Transfer
from tuplewire.tracing.context import MOST_CONTEXTS, context_of, entry_for, sampled, with_entry
from tuplewire.tracing.tracing_settings import TracingSettings
from tuplewire_service.worker.router import Router
from tuplewire_service.worker.worker import _router_type

CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3)


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    """Begin and end without tracing."""
    tracing.disable()
    yield
    tracing.disable()


@given(st.none() | st.binary(max_size=5), HEADERS, HEADERS)
def test_a_context_is_found_among_other_headers(
    key: bytes | None, before: list[tuple[str, bytes]], after: list[tuple[str, bytes]]
) -> None:
    """Wherever it stands, as another program's protobuf library has written it."""
    encoded = encode_headers(key, [*before, ("traceparent", CONTEXT.encode()), *after])
    assert context_of(encoded) == CONTEXT.encode()
    assert sampled(encoded * 3) == {CONTEXT.encode(): 3}


@pytest.mark.parametrize(
    "value",
    [
        CONTEXT.removesuffix("1") + "0",  # its sender does not sample
        CONTEXT.replace("00-", "ff-", 1),
        CONTEXT.upper(),
        "00",
        "",
    ],
)
def test_what_is_no_sampled_context_is_left_alone(value: str) -> None:
    """A context that is not sampled, or is none, has no spans."""
    assert sampled(encode_headers(None, [("traceparent", value.encode())])) == {}


def test_no_more_contexts_than_are_looked_at() -> None:
    """Strangers do not decide on how many spans a group has."""
    many = b"".join(entry_for(f"00-{each + 1:032x}-00f067aa0ba902b7-01") for each in range(200))
    assert len(sampled(many)) == MOST_CONTEXTS


@given(st.lists(st.tuples(st.binary(max_size=5), st.none() | st.binary(max_size=5), HEADERS), min_size=1))
def test_a_group_gets_a_context(messages: list[tuple[bytes, bytes | None, list[tuple[str, bytes]]]]) -> None:
    """Each message has it behind its own key and headers, and keeps its payload."""
    payloads, keys, headers = map(list, zip(*messages, strict=True))
    batch = TaskMessageBatch.from_columns(7, payloads, keys=keys, headers=headers)
    for group in batch.groups:
        traced = with_entry(group, entry_for(CONTEXT, "a=1"), 10_000).checked()
        assert traced.payloads() == group.payloads()
        before = group.encoded_headers() or [b""] * len(group)
        for old, new in zip(before, traced.encoded_headers() or (), strict=True):
            key, pairs = decode_headers(old)
            own = (("traceparent", CONTEXT.encode()), ("tracestate", b"a=1"))
            assert decode_headers(new) == (key, (*pairs, *own))


def test_a_context_makes_no_message_too_large() -> None:
    """A message that has no room for one goes without."""
    group = TaskGroup.of(1, [b"x" * 100])
    assert with_entry(group, entry_for(CONTEXT), 100 + len(entry_for(CONTEXT)) - 1) is group
    assert with_entry(group, entry_for(CONTEXT), 100 + len(entry_for(CONTEXT))) is not group


def test_a_programs_own_context_stays() -> None:
    """What has a context is sent as it is."""
    (group,) = as_groups(1, b"x", None, None, [("traceparent", b"mine")])
    assert with_entry(group, entry_for(CONTEXT), 1000) is group


def test_off_means_other_parts() -> None:
    """Where tracing is off, nothing on a message's way knows of it."""
    client = Client("127.0.0.1:1")
    assert type(client._connected()) is Sender
    subscription = client.recv([1])
    assert type(subscription) is Subscription
    assert type(subscription._receiver) is Receiver
    subscription.close()
    client.close(0)
    assert _router_type() is Router
    assert _parts() == (Transfer, Outbox)


def test_variables() -> None:
    """A program reads two variables; what does not fit is named."""
    read = TracingSettings.from_environment({"TUPLEWIRE_TRACING": "true", "TUPLEWIRE_TRACE_SAMPLE": "0.25"})
    assert (read.tracing, read.trace_sample) == (True, 0.25)
    with pytest.raises(ConfigError, match="TUPLEWIRE_TRACE_SAMPLE must be a number from 0 to 1, not '2'"):
        TracingSettings.from_environment({"TUPLEWIRE_TRACE_SAMPLE": "2"})
    with pytest.raises(ConfigError, match="trace_sample must be a number from 0 to 1"):
        tracing.enable(sample=-1)
