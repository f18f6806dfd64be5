"""The client of a queue over JetStream, which puts."""

from __future__ import annotations

import concurrent.futures
from typing import Any

from ucall.queue.jetstream.stored import StoredQueue

__all__ = ["Communicator"]


class Communicator(StoredQueue):
    """Puts messages into a queue that the broker stores: see `ucall.queue.StoredQueue`."""

    is_server = False

    def put(self, data: Any) -> concurrent.futures.Future[None]:
        """Enqueues an object. The future is done once the broker has stored it.

        Waits only with ``full="block"``. The future fails with `ConnectionError` if no message
        was stored for ``expire_s``; the broker may have stored the message nevertheless.

        Raises:
            ucall.queue.FullError: Messages of ``queue_size`` are not stored yet.
            ValueError: It is longer than ``message_size``.
        """
        done: concurrent.futures.Future[None] = self._sender().put(data)
        return done
