"""Brokers that violate the protocol, themselves or because of another client on the topic."""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from frames import BYTES, DATA, frame, hello

from ucall import queue as nq

WAIT_S = 60
TOPIC = b"ucall/queue"
CONNACK = b"\x20\x03\x00\x00\x00"
PIECE = 0
LONGEST = (1 << 28) - 1


class Hostile:
    """A scripted broker, and the communicator that it has accepted."""

    def __init__(self, purpose: str) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        # Small buffers, for a broker that does not read.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._listener.settimeout(WAIT_S)
        netloc = nq.NetworkLocation("127.0.0.1", self._listener.getsockname()[1])
        # No peer is closed for silence.
        connection = nq.ConnectionOptions(keepalive_s=3000.0, reconnect=(0.01, 0.02))
        options = nq.CommunicatorOptions(netloc=netloc, connection=connection)
        self.communicator = nq.new("mqtt", purpose, options)
        self.socket = self.accept()

    def accept(self) -> socket.socket:
        client_side, _ = self._listener.accept()
        client_side.settimeout(WAIT_S)
        client_side.recv(65536)
        return client_side

    def is_spoken_to(self) -> bool:
        """Makes the communicator send on a new link; returns whether it does."""
        if self.communicator.is_server:
            self.socket.sendall(piece(99, 0, hello(b"c" * 16)))
            return self.hears(TOPIC + b"/down/%032x" % 99)
        self.socket.sendall(publication(TOPIC + b"/server", b""))
        return self.hears(b"ucall-q2")

    def hears(self, words: bytes) -> bool:
        output = b""
        while words not in output and (more := self.socket.recv(65536)):
            output += more
        return words in output

    def is_left(self) -> bool:
        """Waits until the communicator has closed the connection."""
        with contextlib.suppress(ConnectionError):
            while self.socket.recv(65536):
                pass
        return True

    def close(self) -> None:
        self.communicator.close(0)
        self.socket.close()
        self._listener.close()


@pytest.fixture(params=["server", "client"])
def hostile(request: pytest.FixtureRequest) -> Iterator[Hostile]:
    made = Hostile(request.param)
    yield made
    made.close()


@pytest.fixture
def of_server() -> Iterator[Hostile]:
    made = Hostile("server")
    yield made
    made.close()


def number(value: int) -> bytes:
    """A number in MQTT's encoding."""
    digits = b""
    while value > 0x7F:
        digits += bytes([value & 0x7F | 0x80])
        value >>= 7
    return digits + bytes([value])


def publication(topic: bytes, payload: bytes, length: int | None = None) -> bytes:
    head = struct.pack(">H", len(topic)) + topic + b"\0"
    whole = len(head) + len(payload) if length is None else length
    return b"\x30" + number(whole) + head + payload


def piece(link: int, place: int, data: bytes = b"", length: int | None = None) -> bytes:
    """A piece of a link to a server."""
    word = struct.pack("<BQ", PIECE, place)
    return publication(TOPIC + b"/up/%032x" % link, word + data, length)


LEFT = {
    "no MQTT": b"HTTP/1.1 400 Bad Request\r\n\r\n" + b" " * 100,
    "a length without end": b"\x30\xff\xff\xff\xff\x01",
    "the longest packet": b"\x90" + number(LONGEST),
    "a topic beyond its packet": b"\x30\x04\x00\xc8xx",
    "a topic that is no text": publication(b"\xff\xfe", b""),
    "properties of 256 MiB": b"\x30" + number(LONGEST) + b"\x00\x01x" + number(LONGEST),
    "more properties than the packet has": b"\x30\x05\x00\x01x\x7f\x00",
    "a quality of service": b"\x32\x05\x00\x01x\x00\x01",
    "an empty acknowledgement": b"\x20\x00",
    "a kind that there is not": b"\x00\x00",
    "no subscription": b"\x90\x04\x00\x01\x00\x87",
    "a goodbye": b"\xe0\x02\x8d\x00",
}
KEPT = {
    "let in twice": CONNACK,
    "a sign of life that nobody asked for": b"\xd0\x00" * 1000,
    "acknowledgements without end": b"\x40\x02\x00\x01" * 100_000,
    "another topic": publication(b"elsewhere", bytes(1000)),
    "a link that is no number": publication(TOPIC + b"/up/x", bytes(9)),
    "a word that there is not": publication(TOPIC + b"/up/1", b"\x09" * 9),
    "a link of 0 bytes": piece(1, 0),
    "a link that begins in the middle": piece(1, 7, b"x" * 100),
    "garbage on a link": piece(1, 0, b"x" * 1000),
    "clients that are gone": publication(TOPIC + b"/up/1", b"\x04" + bytes(8)) * 1000,
    "credit for what was never sent": publication(TOPIC + b"/up/1", b"\x01" + b"\xff" * 8),
    "servers that come": publication(TOPIC + b"/server", b"") * 100,
}


@pytest.mark.parametrize("case", LEFT)
def test_a_broker_that_speaks_wrongly_is_left(hostile: Hostile, case: str) -> None:
    hostile.socket.sendall(CONNACK + LEFT[case])
    assert hostile.is_left()
    # A new connection may exist by now.
    hostile.accept().close()


@pytest.mark.parametrize("case", KEPT)
def test_meaningless_packets_change_nothing(hostile: Hostile, case: str) -> None:
    hostile.socket.sendall(CONNACK)
    if not hostile.communicator.is_server:
        assert hostile.hears(b"ucall-q2")
    hostile.socket.sendall(KEPT[case])
    assert hostile.is_spoken_to()
    with pytest.raises(TimeoutError):
        hostile.communicator.get(timeout=0)


def test_messages_are_ignored_before_the_broker_accepts(of_server: Hostile) -> None:
    data = hello(b"c" * 16) + frame(DATA, 1, b"x", 1, 1, flags=BYTES)
    of_server.socket.sendall(piece(1, 0, data))
    assert of_server.is_left()
    with pytest.raises(TimeoutError):
        of_server.communicator.get(timeout=0)


def test_a_publication_of_256_mib_takes_no_memory(of_server: Hostile) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    of_server.socket.sendall(CONNACK + piece(1, 0, length=LONGEST))
    block = bytes(1 << 20)
    for _ in range(200):
        of_server.socket.sendall(block)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


LINKS = range(500)


def shaken(of_server: Hostile) -> range:
    """Links after their handshake. Each of their pieces is answered by 60 bytes of credit."""
    for link in LINKS:
        of_server.socket.sendall(piece(link, 0, hello(link.to_bytes(16, "big"))))
    return LINKS


def test_a_broker_that_does_not_read_does_not_block_close(of_server: Hostile) -> None:
    of_server.socket.sendall(CONNACK)
    links = shaken(of_server)
    # More than the sockets buffer, and less than the limit.
    for round in range(1, 250):
        of_server.socket.sendall(b"".join(piece(link, round) for link in links))
    closing = threading.Thread(target=of_server.communicator.close, args=(0,), daemon=True)
    closing.start()
    closing.join(WAIT_S)
    assert not closing.is_alive()


@pytest.mark.parametrize("case", ["links that end", "pieces that are credited"])
def test_a_broker_that_takes_nothing_is_left(of_server: Hostile, case: str) -> None:
    of_server.socket.sendall(CONNACK)
    links = shaken(of_server) if case == "pieces that are credited" else LINKS
    # Each needs a reply of about the same size, for which there is no memory.
    with pytest.raises(ConnectionError):
        for round in range(1, 1000):
            if case == "links that end":
                begun = (500 * round + link for link in links)
                flood = b"".join(piece(link, 0) + piece(link, 5) for link in begun)
            else:
                flood = b"".join(piece(link, round) for link in links)
            of_server.socket.sendall(flood)
