"""The live page at the admin port: for browsers on this machine, with the credentials of a status."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from helpers import eventually
from helpers.browser import browser
from helpers.certificates import Authority
from helpers.program import Threads
from helpers.secured import files_of, secret_file, tls_flags

from tuplewire import Client, Credentials
from tuplewire.connection.control_client import ControlClient
from tuplewire.errors import BufferFullError, FlushTimeoutError
from tuplewire.wire.control_pb2 import GetStatusResponse, TaskStatus
from tuplewire_service.admin.live_page import PAGE, Here, LivePage, Visit, page
from tuplewire_service.launching.local_workers import Endpoint, LocalWorkers

SLOW_TASK = 3


class Answer(NamedTuple):
    """What the admin port has said."""

    status: int
    headers: dict[str, str]
    body: str


def asked(worker: Endpoint, path: str, **headers: str) -> Answer:
    """Ask the admin port; an underscore in a header's name is a hyphen."""
    connection = http.client.HTTPConnection(urlsplit(worker.metrics_url).netloc, timeout=30)
    with contextlib.closing(connection):
        connection.request(
            "GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        answer = connection.getresponse()
        return Answer(answer.status, dict(answer.getheaders()), answer.read().decode())


def live(worker: Endpoint, **headers: str) -> dict[str, Any]:
    """Return what the page reads."""
    answer = asked(worker, "/live.json", **headers)
    assert answer.status == 200, answer
    told: dict[str, Any] = json.loads(answer.body)
    return told


@pytest.fixture(scope="module")
def worker() -> Iterator[Endpoint]:
    """Run a worker, with a program that sends to a consumer which never acknowledges anything."""
    flags = ["--receive-queue-messages=100"]
    with LocalWorkers(1, "default", flags=flags, drain_seconds=1) as workers:
        workers.assign({0: range(10)})
        at = workers.endpoints[0]
        with (
            Client(at.address, client_id="sends") as sender,
            Client(at.address, client_id="sleeps") as consumer,
            consumer.recv([SLOW_TASK], timeout=30) as batches,
        ):
            threads = Threads()

            def send() -> None:
                while not threads.stop.is_set():
                    with contextlib.suppress(BufferFullError):
                        sender.send(SLOW_TASK, b"x", timeout=0.1)

            threads.start(send)
            try:
                next(batches)
                yield at
            finally:
                threads.end()
                with contextlib.suppress(FlushTimeoutError):
                    sender.close(0.1)


def test_the_page_can_do_nothing_else(worker: Endpoint) -> None:
    """No asset from elsewhere, no frame, no script but its own; under 100 KB; for those who ask for HTML."""
    found = asked(worker, "/", Accept="text/html")
    assert found.body == PAGE.read_text(encoding="utf-8")
    assert len(found.body) < 100_000
    assert "//" not in found.body.replace("http://www.w3.org/2000/svg", "")
    policy = found.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "frame-ancestors 'none'" in policy
    assert found.headers["X-Frame-Options"] == "DENY"
    assert found.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "/metrics" in asked(worker, "/").body
    assert page()[0].decode() == found.body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(worker: Endpoint, method: str) -> None:
    """The page only reads: the port knows no other method."""
    connection = http.client.HTTPConnection(urlsplit(worker.metrics_url).netloc, timeout=30)
    with contextlib.closing(connection):
        connection.request(method, "/live.json", b"{}")
        assert connection.getresponse().status == http.HTTPStatus.NOT_IMPLEMENTED


def test_it_reads_what_a_status_has(worker: Endpoint) -> None:
    """Who blocks whom, the time, the ledger, tasks, senders and consumers, with rates."""
    eventually(lambda: live(worker)["blocking"], 60, "somebody blocks")
    told = eventually(
        lambda: (found := live(worker))["workers"][0]["accepted_rate"] is not None and found, 60
    )
    assert told
    assert told["tasks"][0]["task"] == SLOW_TASK
    assert told["tasks"][0]["consumer"] == "sleeps"
    assert [each["sender"] for each in told["senders"]] == ["sends"]
    (row,) = told["workers"]
    assert (row["connected_senders"], row["remembered_senders"], row["consumers"]) == (1, 0, 1)
    assert row["smallest_window"] > 0
    assert told["tasks"][0]["oldest_seconds"] > 0
    assert told["tasks"][0]["received_messages"] > told["tasks"][0]["acknowledged_messages"] >= 0
    assert sum(row["states"].values()) == pytest.approx(1)
    ledger = told["ledger"]
    settled = ledger["acknowledged"] + sum(ledger["dropped"].values()) + ledger["pending"]
    assert ledger["accepted"] == settled


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example:9464"},
        {"Host": "10.0.0.1:9464"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Host": ""},
    ],
)
def test_other_sites_get_nothing(worker: Endpoint, headers: dict[str, str]) -> None:
    """Neither by a name of their own for this machine, nor in the name of whoever looks at them."""
    assert asked(worker, "/live.json", **headers).status == 403
    assert "No live page" in asked(worker, "/", Accept="text/html", **headers).body


@pytest.mark.parametrize(
    ("host", "asks"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.1.2.3", False),
        ("::ffff:10.1.2.3", False),
    ],
)
def test_only_this_machine_may_ask(host: str, *, asks: bool) -> None:
    """Others would read it without TLS."""
    assert (not Visit(host, {"host": "localhost:9464"}).problem) is asks


@pytest.mark.parametrize(("tasks", "slowest"), [(3, 3.0), (20_000, 15.0)])
def test_all_who_look_share_one_look(tasks: int, slowest: float) -> None:
    """However many look; and the more rows there are, the slower is the pace, down to a bound."""
    now, asks = 100.0, 0
    # Made before: a look waits for one second, in which a busy machine may not make 20,000 rows.
    answer = GetStatusResponse(worker_id="w", tasks=[TaskStatus(task=task) for task in range(tasks)])

    def ask(_most_tasks: int | None) -> GetStatusResponse:
        nonlocal asks
        asks += 1
        return answer

    here = Here(ask, lambda: None)
    live_page = LivePage(here, ControlClient, lambda _caller, whos: whos, lambda: now)
    visit = Visit("127.0.0.1", {"host": "localhost"})
    paces = [json.loads(live_page.json(visit))["pace"] for _ in range(3)]
    assert (asks, paces) == (1, [slowest] * 3)
    now += 0.8 * slowest
    live_page.json(visit)
    assert asks == 1
    now += 0.2 * slowest
    live_page.json(visit)
    assert asks == 2
    live_page.close()


def test_it_can_be_switched_off() -> None:
    """Then the port is as it was: a list of paths."""
    with LocalWorkers(1, "default", flags=["--admin-page=false"], drain_seconds=1) as workers:
        at = workers.endpoints[0]
        assert asked(at, "/live.json").status == 404
        assert "/readyz" in asked(at, "/", Accept="text/html").body


def test_a_token_is_asked_for_where_a_status_takes_one(tmp_path: Path) -> None:
    """Without it, and with a wrong one, nothing is told; with it, what that client may see."""
    secret = "right-" + "0" * 20
    tokens = secret_file(tmp_path / "tokens", f"operator {secret}\nother other-{'1' * 20}\n")
    mine = Credentials(token_file=str(secret_file(tmp_path / "mine", secret)))
    flags = [f"--token-file={tokens}"]
    with LocalWorkers(
        1, "default", flags=flags, directory=tmp_path, drain_seconds=1, credentials=mine
    ) as workers:
        workers.assign({0: [1]})
        at = workers.endpoints[0]
        assert asked(at, "/", Accept="text/html").status == 200
        assert asked(at, "/live.json").status == 401
        assert asked(at, "/live.json", Authorization="Bearer wrong").status == 401
        with Client(at.address, credentials=mine) as client:
            client.send(1, b"x")
            client.flush(30)
            assert live(at, Authorization=f"Bearer {secret}")["senders"][0]["who"] == "token operator"


def test_a_worker_that_asks_for_certificates_alone_has_no_page(tmp_path: Path) -> None:
    """A browser cannot show one over plain HTTP: it is told what to use, and nobody links to the page."""
    authority = Authority()
    certificate = authority.issue("worker.example").write(tmp_path / "worker")
    mine = files_of(authority.issue("jobs.example"), tmp_path / "mine", "worker.example")
    flags = tls_flags(certificate)
    with LocalWorkers(
        1, "default", flags=flags, directory=tmp_path, drain_seconds=0.1, credentials=mine
    ) as workers:
        at = workers.endpoints[0]
        answer = asked(at, "/live.json")
        assert (answer.status, "use tuplewire top" in answer.body) == (403, True)
        with ControlClient(at.address, credentials=mine) as control:
            assert control.status().page == ""


RULES = """
[[client]]
certificates = ["worker.example"]
control = ["assign"]

[[client]]
tokens = ["operator"]
control = ["assign"]

[[client]]
send = "*"
"""


def test_of_other_workers_nobody_sees_more_than_here(tmp_path: Path) -> None:
    """The worker that asks them may see all; its visitor sees what the rules give to that client."""
    authority = Authority()
    certificate = authority.issue("worker.example").write(tmp_path / "worker")
    rules = tmp_path / "permissions.toml"
    rules.write_text(RULES, encoding="utf-8")
    lines = {name: f"{name} {name}-{'0' * 20}" for name in ("operator", "one", "two")}
    tokens = secret_file(tmp_path / "tokens", "\n".join(lines.values()))
    mine = {
        name: files_of(
            authority.issue("jobs.example"),
            tmp_path / f"{name}.files",
            "worker.example",
            token_file=secret_file(tmp_path / name, line),
        )
        for name, line in lines.items()
    }
    flags = [*tls_flags(certificate), f"--token-file={tokens}", f"--permissions-file={rules}"]
    with LocalWorkers(
        2, "default", flags=flags, directory=tmp_path, drain_seconds=0.1, credentials=mine["operator"]
    ) as workers:
        workers.assign({0: [1], 1: [2]})
        near, far = workers.endpoints
        with (
            Client(far.address, credentials=mine["one"]) as one,
            Client(far.address, credentials=mine["two"]) as two,
        ):
            for client in (one, two):
                client.send(2, b"x")
                client.flush(30)

            def seen(name: str) -> set[str]:
                told = live(near, Authorization=f"Bearer {name}-{'0' * 20}")
                return {each["who"] for each in told["senders"] if each["worker"] == "worker-1"}

            eventually(lambda: {"token one", "token two"} <= seen("operator"), 60, "an operator sees all")
            assert seen("one") == {"token one"}


def test_the_whole_cluster_is_told() -> None:
    """From any worker: those of its assignment, with what each has; who does not answer is told, too."""
    flags = ["--receive-queue-messages=100"]
    with LocalWorkers(2, "default", flags=flags, drain_seconds=0.1) as workers:
        workers.assign({0: range(5), 1: range(5, 10)})
        near, far = workers.endpoints
        with Client(near.address, client_id="sends") as client:
            client.send(7, b"x")
            client.flush(30)
            for worker, other in ((near, "worker-1"), (far, "worker-0")):
                eventually(lambda worker=worker: len(live(worker)["workers"]) == 2, 60, "both")  # type: ignore[misc]
                told = live(worker)
                assert told["workers"][1]["worker"] == other
                assert told["counts"]["tasks"] == len(told["tasks"]) == 10
                assert {"sends", "worker-0"} <= {each["sender"] for each in told["senders"]}
        with ControlClient(far.address) as control:
            control.drain(0.1)
        eventually(lambda: live(near)["workers"][1]["state"] == "no answer", 60, "one is gone")


def test_ten_thousand_tasks_stay_quick(tmp_path: Path) -> None:
    """A browser gets those that matter most, and a count of all."""
    with LocalWorkers(1, "default", drain_seconds=0.1) as workers:
        workers.assign({0: range(10_000)})
        at = workers.endpoints[0]
        with Client(at.address) as client:
            client.send(9_999, b"x")
            client.flush(30)
        with ControlClient(at.address) as control:
            told_of = control.status(most_tasks=5)
            assert (len(told_of.tasks), told_of.local_tasks) == (5, 10_000)
        answer = asked(at, "/live.json")
        assert len(answer.body) < 150_000
        told = json.loads(answer.body)
        assert (told["counts"]["tasks"], len(told["tasks"])) == (10_000, 200)
        assert told["tasks"][0]["task"] == 9_999
        with browser(tmp_path) as tab:
            tab.open(at.metrics_url.removesuffix("metrics"))
            eventually(lambda: tab.value("by('count').textContent.includes('200 of 10,000')"), 60, "the rows")
            assert tab.value("document.querySelectorAll('*').length") < 5000
            assert tab.complaints == []


def test_a_browser_shows_the_culprit(worker: Endpoint, tmp_path: Path) -> None:
    """The page names it, its row and the node are red, tabs and filter work, and nothing complains."""
    eventually(lambda: live(worker)["blocking"], 60, "somebody blocks")
    with browser(tmp_path) as tab:
        tab.open(worker.metrics_url.removesuffix("metrics"))

        def until(expression: str, what: str) -> None:
            eventually(lambda: tab.value(expression), 60, f"{what}; {tab.complaints}")

        sentence = f"task {SLOW_TASK} at worker-0 holds up senders at worker-0"
        until(f"document.querySelector('#blocking').innerText.includes('{sentence}')", "the culprit is named")
        first = "document.querySelector('#body tr')"
        until(
            f"{first}.cells[0].innerText === '{SLOW_TASK}' && {first}.className === 'held'",
            "its row is first",
        )
        red, box = (
            "getComputedStyle(document.querySelector('#blocking p')).color",
            "document.querySelector('#worker-worker-0 .box')",
        )
        until(f"getComputedStyle({first}.cells[0]).color === {red}", "its row is red")
        until(f"getComputedStyle({box}).stroke === {red}", "the worker is red")
        square = f"document.querySelector('[aria-label=\"task {SLOW_TASK}, holds others up\"]')"
        until(f"getComputedStyle({square}).fill === {red}", "its square is red")
        captions = "[...document.querySelectorAll('#lines figcaption')]"
        assert tab.value(f"{captions}.map(each => each.firstChild.textContent)") == [
            "Accepted",
            "Acknowledged",
            "End to end, 99 %",
            "In a queue, 99 %",
            "Pending",
            "Held up",
            "Dropped",
        ]
        ledger = "/^Accepted [0-9,]+ = acknowledged 0 [+] dropped 0 [+] pending/"
        assert tab.value(f"{ledger}.test(by('ledger').innerText)")
        tab.value(f"{first}.click()")
        until("document.querySelector('#detail').innerText.includes('sleeps')", "the task by itself")
        tab.value(f"{box}.parentNode.onclick()")
        until("by('detailtitle').innerText === 'worker worker-0'", "the worker by itself")
        tab.value("document.querySelector('#tab-consumers').click()")
        until(f"{first}.cells[0].innerText === 'sleeps'", "the consumers")
        tab.value(f"{first}.click()")
        until("by('detailtitle').innerText === 'consumer sleeps'", "a consumer by itself")
        tab.value("document.querySelector('#tab-senders').click()")
        until(f"{first}.cells[0].innerText === 'sends'", "the senders")
        tab.value(f"{first}.click()")
        until("by('detailtitle').innerText === 'sender sends'", "a program by itself")
        tab.value("const f = document.querySelector('#filter'); f.value = 'nobody'; f.oninput()")
        until("document.querySelectorAll('#body tr').length === 0", "the filter")
        tab.resize(390, 800)
        until("document.documentElement.scrollWidth <= 390", "it fits a phone")
        assert tab.complaints == []
