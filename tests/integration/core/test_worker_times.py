"""A worker's metrics: time in each state, blocking tasks, message latencies, and counts for each peer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from helpers.admin import samples
from helpers.topology import Pair, collect, metric, numbered, pair_of_workers, queued, status
from helpers.traffic import client_of, deliver, take

from tuplewire.client import Client
from tuplewire.errors import BufferFullError
from tuplewire.processes.worker_processes import Endpoint
from tuplewire_service.command.status_report import status_as_text
from tuplewire_service.testing import eventually

STATES = ("busy", "idle", "backpressured_queue", "backpressured_credit", "backpressured_socket")
ROUNDING = 1e-3
"""Seconds by which the times of two clocks may differ."""
BEFORE_GIVING_UP = 40.0
"""Seconds that a loaded machine may need for an operation of one or two seconds."""


@pytest.fixture(scope="module", params=["grpc", "zmq"])
def workers(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Run two workers with small queues."""
    flags = ("--receive-queue-messages=500", "--receive-queue-bytes=1MiB")
    with pair_of_workers(*flags, f"--transport={request.param}") as pair:
        yield pair


def states(endpoint: Endpoint) -> dict[str, float]:
    """Return the seconds spent in each state."""
    scraped = samples(endpoint.metrics_url)
    return {state: scraped[f'tuplewire_state_seconds_total{{state="{state}"}}'] for state in STATES}


def grows_by(value: Callable[[], float], seconds: float, what: str) -> None:
    """Wait until a value has grown by `seconds`."""
    before = value()
    eventually(lambda: value() >= before + seconds, BEFORE_GIVING_UP, what)


def fill(client: Client, task: int) -> int:
    """Send to a task until no more messages are accepted; return the number of messages sent."""
    sent = 0
    try:
        while True:
            client.send(numbered(task, range(sent, sent + 100)), timeout=1)
            sent += 100
    except BufferFullError:
        return sent


def balance(workers: Pair) -> tuple[float, float, float, float]:
    """Return near's counts of messages for far: accepted, acknowledged, dropped and pending."""
    peer = f'{{peer="{workers.far.worker_id}"}}'
    scraped = samples(workers.near.metrics_url)
    accepted, acknowledged, dropped = (
        scraped[f"tuplewire_peer_{what}_messages_total{peer}"]
        for what in ("accepted", "acknowledged", "dropped")
    )
    pending = scraped[f"tuplewire_peer_pending_messages{peer}"]
    assert accepted == acknowledged + dropped + pending
    return accepted, acknowledged, dropped, pending


@contextmanager
def stopped(endpoint: Endpoint) -> Iterator[None]:
    """Stop a worker's process until the block ends."""
    os.kill(endpoint.process_id, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(endpoint.process_id, signal.SIGCONT)


def test_a_slow_consumer_shows_where_it_is(workers: Pair) -> None:
    """A slow consumer's worker reports a full queue, its peer reports missing credit; both name the task."""
    task = workers.far_task()
    far = workers.far.worker_id
    with client_of(workers.near.address, max_pending_messages=2000) as client:
        sent = fill(client, task)
        at_far = f'tuplewire_blocking_seconds_total{{place="local",task="{task}"}}'
        at_near = f'tuplewire_blocking_seconds_total{{place="{far}",task="{task}"}}'
        grows_by(lambda: states(workers.far)["backpressured_queue"], 0.5, "the queue holds back")
        grows_by(lambda: states(workers.near)["backpressured_credit"], 0.5, "the peer's credit holds back")
        grows_by(lambda: metric(workers.far, at_far), 0.3, "the task blocks here")
        grows_by(lambda: metric(workers.near, at_near), 0.3, "the task blocks there")
        assert metric(workers.far, "tuplewire_fullest_queue_ratio") == 1.0
        assert f"blocking    task {task} (local) has blocked others for" in status_as_text(
            status(workers.far)
        )
        take(workers.far, task, sent)
        client.flush(20)
        grows_by(lambda: states(workers.near)["idle"], 0.2, "it is over")
        settled = samples(workers.near.metrics_url)
        grows_by(lambda: states(workers.near)["idle"], 0.3, "time passes")
        assert samples(workers.near.metrics_url)[at_near] == settled[at_near]


def test_a_peer_that_hangs_shows_as_who_blocks(workers: Pair) -> None:
    """A stopped worker blocks messages to its tasks: its peer reports backpressure of the connection."""
    task = workers.far_task()
    blocking = f'tuplewire_blocking_seconds_total{{place="{workers.far.worker_id}",task="{task}"}}'
    with client_of(workers.near.address) as client:
        with stopped(workers.far):
            deliver(client, numbered(task, range(10)))
            grows_by(lambda: states(workers.near)["backpressured_socket"], 0.5, "the connection holds back")
            client.send(numbered(task, range(10, 20)))
            eventually(lambda: balance(workers)[3] == 20, BEFORE_GIVING_UP, "what was not sent counts, too")
            grows_by(lambda: metric(workers.near, blocking), 0.3, "the task is blocked by its worker")
        take(workers.far, task, 20)


@pytest.mark.parametrize("workers", ["grpc"], indirect=True)
def test_times_count_every_message(workers: Pair) -> None:
    """Queue times and end-to-end times include the wait, and count each message once."""
    task = workers.far_task()

    def count(endpoint: Endpoint, family: str) -> float:
        return metric(endpoint, f"tuplewire_{family}_seconds_count")

    families = ("queue_wait", "end_to_end")
    before = {each: metric(workers.far, f"tuplewire_{each}_seconds_sum") for each in families}
    counted = {family: count(workers.far, family) for family in families}
    on_the_way = count(workers.near, "send_to_ack")
    sent = time.monotonic()
    with client_of(workers.near.address) as client:
        deliver(client, numbered(task, range(100)))
    eventually(lambda: queued(workers.far, task) == 100, BEFORE_GIVING_UP, "queued")
    all_queued = time.monotonic()
    with client_of(workers.far.address) as consumer:
        subscription = consumer.recv([task], timeout=20)
        asked = time.monotonic()
        collect(subscription, 100)
        eventually(
            lambda: all(count(workers.far, family) == counted[family] + 100 for family in families),
            BEFORE_GIVING_UP,
            "each counted once",
        )
        counted_by = time.monotonic()
    eventually(
        lambda: count(workers.near, "send_to_ack") == on_the_way + 100, BEFORE_GIVING_UP, "acknowledged"
    )
    after = samples(workers.far.metrics_url)
    for family in families:
        each = (after[f"tuplewire_{family}_seconds_sum"] - before[family]) / 100
        assert asked - all_queued - ROUNDING <= each <= counted_by - sent + ROUNDING
        assert after[f'tuplewire_{family}_seconds_bucket{{le="+Inf"}}'] == counted[family] + 100


@pytest.mark.parametrize("workers", ["grpc"], indirect=True)
def test_a_blocked_loop_shows_in_its_lag(workers: Pair) -> None:
    """Probes that were due while the event loop was stopped report a delay."""
    probes = "tuplewire_event_loop_lag_seconds_count"
    slow = 'tuplewire_event_loop_lag_seconds_bucket{le="0.25"}'

    def late() -> float:
        scraped = samples(workers.near.metrics_url)
        return scraped[probes] - scraped[slow]

    before = late()
    with stopped(workers.near):
        # Each worker runs ten probes per second: the other worker's probes measure the stopped time.
        grows_by(lambda: metric(workers.far, probes), 12, "more than a second")
    eventually(lambda: late() >= before + 8, BEFORE_GIVING_UP, "eight probes that were late")


@pytest.mark.parametrize("workers", ["grpc"], indirect=True)
def test_settings_in_force_are_told(workers: Pair) -> None:
    """One series contains the configuration, without names, paths or secrets."""
    (config,) = (
        name for name in samples(workers.near.metrics_url) if name.startswith("tuplewire_config_info")
    )
    assert 'receive_queue_messages="500"' in config
    assert "/" not in config
