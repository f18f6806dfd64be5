"""Carries a communicator's links through NATS, whose server is another client of the broker.

A link has a random name. Bytes for the queue's server go to ``TOPIC.up.NAME``, bytes for its client
to ``TOPIC.down.NAME``, and a server announces itself under ``TOPIC.server``, so that its clients
dial at once. The messages of a link are those of `QueueTunnel`:

| kind | number | then |
|---|---|---|
| `PIECE` | the bytes of the link before it | the next bytes of the link |
| 1 | the byte of the link up to which the other side may send | |
| `CLOSE` | 0; the link has ended | |

A link also ends if no such credit arrives for ``keepalive_s``, and the session continues over the
next one. Each message names the sender's own subject for the reply, to which the broker replies 503
if no process subscribes to the other one.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
import uuid
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ucall._core import QueueTunnel
from ucall._nats.connection import cancel, connect, start
from ucall.queue.core.nats_options import broker_urls, connection_options

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from ucall._core import QueueLink
    from ucall.queue.core import Communicator

__all__ = ["Transport"]

#: Bytes of a piece; fewer if the broker's `max_payload` is smaller.
PIECE_BYTES_MAX = 128 * 1024
#: Bytes between the communicator and the transport, in each direction.
IN_FLIGHT_BYTES = 2 << 20
#: Seconds for the links to send their last frames.
LINGER_S = 1.0
HEADER = struct.Struct("<BQ")
PIECE, CLOSE = 0, 2
#: The broker's status for a message without a reader.
NO_READER = "503"
_NAME = re.compile(r"[0-9a-f]{32}")


class Transport:
    """The links of one communicator through its broker.

    Args:
        communicator: Opens the links; its options have the broker.
    """

    #: Neither side listens.
    address: tuple[str, int] | None = None

    def __init__(self, communicator: Communicator) -> None:
        # The communicator closes when the program drops it: the transport must not keep it alive.
        self._communicator = weakref.ref(communicator)
        self._is_server = communicator.is_server
        self.dials = not self._is_server
        self._options = communicator.options
        self._given = connection_options(self._options)
        self._topic = self._options.broker.topic
        self._links: dict[str, _Link] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._broker: Any = None
        #: Wakes `_run`: the broker is connected, a server has started, or this side closes.
        self._changed = asyncio.Event()
        self._is_ending = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self.ended = start(self._run())

    def close(self) -> None:
        """Closes the links after their last frames are sent, and waits for that."""
        start(self._end())
        self.ended.result()

    def deliver(self, communicator: Communicator) -> None:
        """Keeps a communicator that the program has dropped until all messages are delivered, and
        closes the links then. Does not wait for that."""
        # The garbage collector clears weak references to what it finds in a cycle.
        self._communicator = weakref.ref(communicator)
        start(self._deliver(communicator))

    async def _deliver(self, communicator: Communicator) -> None:
        await asyncio.wrap_future(communicator._ended)
        await self._end()

    async def _end(self) -> None:
        self._is_ending = True
        self._changed.set()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        connecting = self._begin(self._connect())
        while not connecting.done() and not self._is_ending:
            await self._next_change()
        await cancel(connecting)
        with contextlib.suppress(asyncio.CancelledError):
            self._broker = await connecting
            await self._carry()
        if self._broker is not None:
            await self._broker.close()
        for link in list(self._links.values()):
            link.end()

    async def _carry(self) -> None:
        """Carries links until this side closes."""
        broker = self._broker
        if self._is_server:
            await broker.subscribe(f"{self._topic}.up.*", cb=self._receive)
            await broker.publish(f"{self._topic}.server")
        else:
            await broker.subscribe(f"{self._topic}.server", cb=self._handle_server_started)
        delay_s = first_s = self._options.connection.reconnect[0]
        while not self._is_ending and not self._is_finished():
            if self._is_server or self._links or not broker.is_connected:
                await self._next_change()
                continue
            link = await self._dial()
            if link is None:
                await self._next_change(delay_s)
                continue
            while link.name in self._links and not self._is_ending:
                await self._next_change()
            delay_s = first_s if link.has_received else delay_s * 2
            delay_s = min(delay_s, self._options.connection.reconnect[1])
            if not self._is_ending:
                # The start of a server ends the pause.
                await self._next_change(delay_s)
        await self._wait_for_links()

    async def _connect(self) -> Any:
        try:
            return await connect(
                broker_urls(self._options),
                self._given,
                f"ucall queue {self._options.id}",
                reports=True,
                on_lost=self._handle_lost,
                on_connected=self._handle_connected,
            )
        finally:
            self._changed.set()

    def _handle_lost(self) -> None:
        """Pieces on their way to or from the broker may be lost with the connection."""
        for link in list(self._links.values()):
            link.end()

    def _handle_connected(self) -> None:
        if self._is_server and self._broker is not None:
            self._begin(self._broker.publish(f"{self._topic}.server"))
        self._changed.set()

    async def _handle_server_started(self, _message: Any) -> None:
        """Ends the client's link, because a new server does not know it."""
        for link in list(self._links.values()):
            link.end()
        self._changed.set()

    async def _dial(self) -> _Link | None:
        name = uuid.uuid4().hex
        there, here = f"{self._topic}.up.{name}", f"{self._topic}.down.{name}"
        subscription = await self._broker.subscribe(here, cb=self._receive)
        link = self._open(name, there, here)
        if link is not None:
            link.on_end = lambda: self._begin(_unsubscribe(subscription))
        return link

    def _open(self, name: str, there: str, here: str) -> _Link | None:
        communicator = self._communicator()
        if communicator is None:
            return None
        assert self._loop is not None
        loop, is_wanted = self._loop, asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(is_wanted.set)

        core = communicator._open_link(self.dials, wake, IN_FLIGHT_BYTES)
        link = _Link(self, core, name, there, here, is_wanted)
        self._links[name] = link
        self._begin(link.write())
        return link

    async def _receive(self, message: Any) -> None:
        """Handles a message of a link, or the broker's reply that it had no reader."""
        name = message.subject.rpartition(".")[2]
        link = self._links.get(name)
        if message.headers and message.headers.get("Status") == NO_READER:
            if link is not None:
                link.end()
            return
        data = message.data
        if len(data) < HEADER.size:
            return
        kind, number = HEADER.unpack_from(data)
        if link is None and kind == PIECE:
            there = f"{self._topic}.down.{name}"
            if number == 0 and self._is_server and not self._is_ending and _NAME.fullmatch(name):
                link = self._open(name, there, message.subject)
            elif message.reply:
                # A link from before a loss of the connection, or of this process.
                await self._publish(message.reply, HEADER.pack(CLOSE, 0))
        if link is not None:
            link.receive(data)

    @property
    def links(self) -> int:
        return len(self._links)

    @property
    def piece_bytes_max(self) -> int:
        bytes_max: int = self._broker.max_payload - HEADER.size
        return min(PIECE_BYTES_MAX, max(1, bytes_max))

    @property
    def stalled_s(self) -> float:
        """Seconds without credit after which a link has ended."""
        return self._options.connection.keepalive_s

    async def publish(self, link: _Link, payload: bytes) -> None:
        await self._publish(link.there, payload, link.here)

    async def _publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        # After a failure the connection is lost, and so are all links.
        if self._broker.is_connected:
            with contextlib.suppress(Exception):
                await self._broker.publish(subject, payload, reply)

    def forget(self, link: _Link) -> None:
        self._links.pop(link.name, None)
        self._changed.set()

    def _begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts a task, and keeps it until it has ended."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _next_change(self, timeout_s: float | None = None) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        self._changed.clear()

    def _is_finished(self) -> bool:
        """Whether the session has ended, so that a client must not connect again."""
        communicator = self._communicator()
        # It is None while the communicator is collected, until `deliver`.
        return communicator is not None and not self._is_server and communicator._is_closed

    async def _wait_for_links(self) -> None:
        deadline = asyncio.get_running_loop().time() + LINGER_S
        while self._links and (left_s := deadline - asyncio.get_running_loop().time()) > 0:
            await self._next_change(left_s)
        if self._broker.is_connected:
            with contextlib.suppress(Exception):
                await self._broker.flush(timeout=max(1, round(LINGER_S)))


class _Link:
    """One link, with its numbered pieces and its credit in each direction."""

    def __init__(
        self,
        transport: Transport,
        core: QueueLink,
        name: str,
        there: str,
        here: str,
        is_wanted: asyncio.Event,
    ) -> None:
        self.name, self.there, self.here = name, there, here
        self.on_end: Callable[[], object] = lambda: None
        self._transport = transport
        self._core = core
        #: Set when there may be something to send.
        self._is_wanted = is_wanted
        self._tunnel = QueueTunnel(core, transport.dials)
        #: Since when there is output and no credit.
        self._stalled_since = 0.0
        self._has_ended = self._reports_end = False

    @property
    def has_received(self) -> bool:
        return self._tunnel.has_received

    def receive(self, data: bytes) -> None:
        """Handles a message of the other side."""
        event = self._tunnel.handle_message(data)
        if event in ("closed", "lost"):
            self.end(event == "lost")
            return
        if event == "credit":
            self._stalled_since = 0.0
        # Credit may be due, too.
        self._is_wanted.set()

    def end(self, reports: bool = False) -> None:
        """The link has ended; with ``reports``, `write` reports that to the other side."""
        if not self._has_ended:
            self._has_ended, self._reports_end = True, reports
            self._core.handle_closed()
            self._is_wanted.set()
            self._transport.forget(self)
            self.on_end()

    async def write(self) -> None:
        """Sends pieces and credit until the link has ended."""
        transport, publish = self._transport, self._transport.publish
        while not self._has_ended:
            self._is_wanted.clear()
            message = self._tunnel.next_message(transport.piece_bytes_max, transport.links)
            if message is not None:
                if message[0] == PIECE:
                    self._stalled_since = 0.0
                await publish(self, message)
            elif self._core.is_closed:
                self.end(True)
            else:
                await self._wait()
        if self._reports_end:
            await publish(self, HEADER.pack(CLOSE, 0))

    async def _wait(self) -> None:
        """Waits until there may be something to send; ends the link if no credit arrives."""
        if not self._core.in_flight:
            await self._is_wanted.wait()
            return
        time = asyncio.get_running_loop().time
        self._stalled_since = self._stalled_since or time()
        try:
            async with asyncio.timeout_at(self._stalled_since + self._transport.stalled_s):
                await self._is_wanted.wait()
        except TimeoutError:
            # Pieces or credit were lost.
            self.end(True)


async def _unsubscribe(subscription: Any) -> None:
    # A lost connection has no subscriptions.
    with contextlib.suppress(Exception):
        await subscription.unsubscribe()
