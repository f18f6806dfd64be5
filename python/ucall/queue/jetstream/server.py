"""A server of a queue over JetStream, which gets."""

from __future__ import annotations

from ucall._core import Message
from ucall.queue.jetstream.stored import StoredQueue

__all__ = ["Communicator"]


class Communicator(StoredQueue):
    """Gets messages from a queue that the broker stores: see `ucall.queue.StoredQueue`."""

    is_server = True

    def get(self, *, timeout: float | None = None) -> Message:
        """Waits for the next message that no other server of the queue gets.

        An exception of ``load`` has the sender as its ``peer``, and the message, without its data,
        as its ``queue_message``.

        Raises:
            ucall.queue.RefusedError: The message contains an object that is not allowed.
            ConnectionError: This side has closed.
            TimeoutError: None came within ``timeout`` seconds.
        """
        message: Message = self._receiver().get(timeout)
        return message
