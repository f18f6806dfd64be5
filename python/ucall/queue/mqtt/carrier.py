"""Carries a communicator's links through an MQTT broker.

The server is another client of the broker. A link is a pair of topics that the client names anew
each time: what goes to the server is published under ``TOPIC/up/NAME``, what goes to the client
under ``TOPIC/down/NAME``. A server that comes says so under ``TOPIC/server``, and its clients make
their links anew. A broker may lose what it holds (it is killed, or its queue is full), so each
piece has a number: one that is missing ends the link, and the session goes on over the next.
Acknowledgements are the session's, from end to end; so pieces go with QoS 0, and credit from the
receiver, not from the broker, bounds what lies in the broker.
"""

from __future__ import annotations

import logging
import queue
import secrets
import ssl
import struct
import threading
import time
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

if TYPE_CHECKING:
    from ucall.queue.core import Communicator, SecurityOptions

__all__ = ["Carrier"]

# What a publication is, and its number or, for credit, how many pieces have come.
HEADER = struct.Struct("<BQ")
PIECE, CREDIT, CLOSE = range(3)
PIECE_BYTES_MAX = 1 << 20
# Pieces that may be under way on one link: far below what brokers queue for a client (1,000).
PIECES_MAX = 16
# How long what is left to say at the end may take.
LINGER_S = 1.0
# The reason code of MQTT 5 for "unsupported protocol version".
UNSUPPORTED_VERSION = 132


log = logging.getLogger("ucall")


class Order(Enum):
    """What the sender's thread is asked to do, besides sending."""

    DIAL = auto()
    SPEAK_OLDER = auto()
    END = auto()


class Pipe:
    """One link: numbered pieces each way, and credit for them."""

    def __init__(self, carrier: Carrier, name: str) -> None:
        self.name = name
        self._carrier = carrier
        self._sent = self._sent_credit = 0
        self._received = self._received_credit = 0
        self._is_due = False
        self.link = carrier.open_link(not carrier.is_server, self.wake)

    def wake(self) -> None:
        """Has the sender look for something to send. May be called on any thread."""
        if not self._is_due:
            self._is_due = True
            self._carrier.due.put(self)

    def send(self) -> None:
        """Publishes what there is, as far as credit goes. On the sender's thread alone."""
        self._is_due = False
        while self._sent - self._sent_credit < PIECES_MAX:
            data = self.link.next_frame(PIECE_BYTES_MAX)
            if data is None:
                break
            self._carrier.publish(self.name, PIECE, self._sent, data)
            self._sent += 1
        if self.link.is_over:
            self._carrier.end(self)

    def take(self, kind: int, number: int, data: memoryview) -> None:
        """Takes what came. On the broker client's thread alone."""
        if kind == PIECE and number == self._received:
            self._received += 1
            self.link.receive(data)
            if self._received - self._received_credit >= PIECES_MAX // 4:
                self._received_credit = self._received
                self._carrier.publish(self.name, CREDIT, self._received)
        elif kind == CREDIT and self._sent_credit < number <= self._sent:
            self._sent_credit = number
            self.wake()
        elif kind == CLOSE or (kind == PIECE and number > self._received):
            self._carrier.end(self)


class Carrier:
    """The links of one communicator, and its connection to the broker.

    Args:
        communicator: Opens the links, and says where the broker is and how to speak to it.

    Raises:
        OSError: A file of the security options cannot be read.
    """

    def __init__(self, communicator: Communicator) -> None:
        self.open_link = communicator._open_link
        self.is_server = communicator.is_server
        self._options = options = communicator.options
        broker = options.broker
        up, down = f"{broker.topic}/up", f"{broker.topic}/down"
        self._arrival = f"{broker.topic}/server"
        self._ours, self._theirs = (up, down) if self.is_server else (down, up)
        self.due: queue.SimpleQueue[Pipe | Order] = queue.SimpleQueue()
        self.address = None
        self._pipes: dict[str, Pipe] = {}
        self._is_connected = False
        self._ends_at: float | None = None
        self._dials_at: float | None = None
        self._delay_s = options.connection.reconnect[0]
        self._client = self._connect(MQTTProtocolVersion.MQTTv5)
        self._sender = threading.Thread(target=self._run, name="ucall-mqtt", daemon=True)
        self._sender.start()

    def close(self) -> None:
        """Leaves the broker, once all that links had to say is published."""
        self.due.put(Order.END)
        self._sender.join()
        self._client.disconnect()
        self._client.loop_stop()

    def publish(self, name: str, kind: int, number: int, data: bytes = b"") -> None:
        """Publishes one piece, or a word about pieces."""
        self._client.publish(f"{self._theirs}/{name}", HEADER.pack(kind, number) + data, qos=0)

    def end(self, pipe: Pipe) -> None:
        """Gives a link up, and tells the other side."""
        if self._pipes.pop(pipe.name, None) is None:
            return
        pipe.link.closed()
        self.publish(pipe.name, CLOSE, 0)
        if not self.is_server:
            self._client.unsubscribe(f"{self._ours}/{pipe.name}")
            self._dials_at = time.monotonic() + self._delay_s
            self.due.put(pipe)
            self._delay_s = min(self._delay_s * 2, self._options.connection.reconnect[1])

    def _run(self) -> None:
        """Sends, and dials, until there is nothing left to say. On the sender's thread."""
        while self._ends_at is None or (self._pipes and time.monotonic() < self._ends_at):
            try:
                pipe = self.due.get(timeout=self._wait_s())
            except queue.Empty:
                if self._dials_at is not None and time.monotonic() >= self._dials_at:
                    self._dial()
                continue
            if isinstance(pipe, Pipe):
                pipe.send()
            elif pipe is Order.DIAL:
                self._dial()
            elif pipe is Order.SPEAK_OLDER:
                self._client.loop_stop()
                self._client = self._connect(MQTTProtocolVersion.MQTTv311)
            else:
                self._ends_at = time.monotonic() + LINGER_S

    def _wait_s(self) -> float | None:
        moments = [moment for moment in (self._dials_at, self._ends_at) if moment is not None]
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _dial(self) -> None:
        """Opens a link to the server. The broker sees the subscription before what is sent."""
        self._dials_at = None
        if self._is_connected and not self._pipes and self._ends_at is None:
            name = secrets.token_hex(16)
            self._client.subscribe(f"{self._ours}/{name}", qos=0)
            self._pipes[name] = Pipe(self, name)

    def _connect(self, protocol: MQTTProtocolVersion) -> Client:
        options, security = self._options, self._options.security
        client = Client(CallbackAPIVersion.VERSION2, protocol=protocol)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        if options.broker.user is not None:
            client.username_pw_set(options.broker.user, options.broker.password)
        if security is not None:
            client.tls_set_context(_context(security))
        # It takes fractions of a second, whatever its annotation says.
        client.reconnect_delay_set(*options.connection.reconnect)  # type: ignore[arg-type]
        keepalive_s = max(1, round(options.connection.keepalive_s))
        client.connect_async(options.netloc.host, options.netloc.port, keepalive=keepalive_s)
        client.loop_start()
        return client

    def _on_connect(self, client: Client, _data: Any, _flags: Any, reason: Any, _more: Any) -> None:
        if reason.is_failure:
            if reason.value == UNSUPPORTED_VERSION:
                self.due.put(Order.SPEAK_OLDER)
            else:
                log.warning("the broker at %s:%d refuses us: %s", *self._options.netloc, reason)
            return
        self._is_connected = True
        if self.is_server:
            client.subscribe(f"{self._ours}/+", qos=0)
            client.publish(self._arrival, qos=0)
        else:
            client.subscribe(self._arrival, qos=0)
            self.due.put(Order.DIAL)

    def _on_disconnect(self, *_: Any) -> None:
        """What was under way may be lost, so no link goes on."""
        self._is_connected = False
        self._drop_links()

    def _drop_links(self) -> None:
        while self._pipes:
            _name, pipe = self._pipes.popitem()
            pipe.link.closed()

    def _on_message(self, _client: Client, _data: Any, message: MQTTMessage) -> None:
        if message.topic == self._arrival:
            self._drop_links()
            self._delay_s = self._options.connection.reconnect[0]
            self.due.put(Order.DIAL)
            return
        name = message.topic.rpartition("/")[2]
        if len(message.payload) < HEADER.size:
            return
        kind, number = HEADER.unpack_from(message.payload)
        pipe = self._pipes.get(name)
        if pipe is None and self.is_server and kind == PIECE:
            if number > 0:
                # A link from before the broker or we were started again.
                self.publish(name, CLOSE, 0)
                return
            pipe = self._pipes[name] = Pipe(self, name)
        if pipe is not None:
            pipe.take(kind, number, memoryview(message.payload)[HEADER.size :])
            self._delay_s = self._options.connection.reconnect[0]


def _context(security: SecurityOptions) -> ssl.SSLContext:
    """Trusts ``authority``, or the system's store, and shows ``certificate``: the broker is the
    server of both sides."""
    context = ssl.create_default_context(cafile=security.authority)
    if security.certificate is not None:
        context.load_cert_chain(security.certificate, security.key)
    return context
