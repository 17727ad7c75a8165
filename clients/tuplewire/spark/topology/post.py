"""How mail is sent and fetched: a client of a worker, and a thread that reads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tuplewire.client import Client, Subscription
from tuplewire.errors import TuplewireError, UnknownTaskError
from tuplewire.message import TaskMessageBatch
from tuplewire.spark.topology.mail import Mail

_FLUSH_SECONDS = 5.0
_RETRY_SECONDS = 0.1


class Post:
    """The mailbox of a PySpark task, or of a submitter; ends with the block, once what it sent is accepted.

    mailbox: its task id. received: called in the thread that reads, with each mail of this run. failed:
    called there with the error after which there is no more mail. waits: whether the worker may not have the
    task yet, as the assignment is still to come.
    """

    def __init__(
        self,
        client: Client,
        run: str,
        mailbox: int,
        received: Callable[[Mail], None],
        failed: Callable[[TuplewireError], None],
        *,
        waits: bool = False,
    ) -> None:
        self._client = client
        self._run = run
        self._received = received
        self._failed = failed
        self._mailbox = mailbox
        self._waits = waits
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._main, name="tuplewire mail", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        try:
            while not self._closed.is_set():
                try:
                    subscription = self._client.recv([self._mailbox])
                    if self._closed.is_set():  # and may have been before there was anything to close
                        subscription.close()
                    self._read(subscription)
                except UnknownTaskError:
                    if not self._waits:
                        raise
                    self._closed.wait(_RETRY_SECONDS)
        except TuplewireError as error:
            if not self._closed.is_set():
                self._failed(error)

    def _read(self, subscription: Subscription) -> None:
        for batch in subscription:
            subscription.acknowledge()
            for group in batch.groups:
                for payload in group.payloads():
                    mail = Mail.from_bytes(payload)
                    if mail.run == self._run:
                        self._waits = False
                        self._received(mail)

    def send(self, mailbox: int, mail: Mail) -> None:
        """Send a mail to a mailbox."""
        self._client.send(TaskMessageBatch.from_columns([mailbox], [mail.to_bytes()]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._client.close(_FLUSH_SECONDS)
        self._thread.join()
