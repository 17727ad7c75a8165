"""How mail is sent and fetched: a client of a worker, and a thread that reads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tuplewire.client import Client
from tuplewire.errors import ClosedError, TuplewireError
from tuplewire.message import TaskMessageBatch
from tuplewire.spark.topology.mail import Mail

_FLUSH_SECONDS = 5.0


class Post:
    """The mailbox of a PySpark task, or of a submitter; ends with the block, once what it sent is accepted.

    mailbox: its task id. received: called in the thread that reads, with each mail of this run. failed:
    called there with the error after which there is no more mail.
    """

    def __init__(
        self,
        client: Client,
        run: str,
        mailbox: int,
        received: Callable[[Mail], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._client = client
        self._run = run
        self._received = received
        self._failed = failed
        self._subscription = client.recv([mailbox])
        self._closed = False
        self._thread = threading.Thread(target=self._read, name="tuplewire mail", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for batch in self._subscription:
                self._subscription.acknowledge()
                for group in batch.groups:
                    for payload in group.payloads():
                        mail = Mail.from_bytes(payload)
                        if mail.run == self._run:
                            self._received(mail)
        except ClosedError:
            return
        except TuplewireError as error:
            if not self._closed:
                self._failed(error)

    def send(self, mailbox: int, mail: Mail) -> None:
        """Send a mail to a mailbox."""
        self._client.send(TaskMessageBatch.from_columns([mailbox], [mail.to_bytes()]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        self._subscription.close()
        self._thread.join()
        self._client.close(_FLUSH_SECONDS)
