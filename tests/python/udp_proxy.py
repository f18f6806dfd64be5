"""A UDP proxy that loses, repeats, delays and reorders datagrams, by a seed."""

from __future__ import annotations

import heapq
import random
import selectors
import socket
import threading
import time
from contextlib import suppress
from typing import Self


class UdpProxy:
    """Passes datagrams between clients and a server, each client from a socket of its own.

    Args:
        server: Its address.
        loss, duplicates: Shares of the datagrams, in each direction.
        delay_s: The longest delay of a datagram; each is chosen at random, so that they overtake
            each other.
        seed: Of the random choices.
    """

    def __init__(
        self,
        server: tuple[str, int],
        *,
        loss: float = 0,
        duplicates: float = 0,
        delay_s: float = 0,
        seed: int = 1,
    ) -> None:
        self._server = server
        self._loss, self._duplicates, self._delay_s = loss, duplicates, delay_s
        self._random = random.Random(seed)
        self._front = self._socket()
        self._front.bind(("127.0.0.1", 0))
        self.port: int = self._front.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._front, selectors.EVENT_READ)
        self._backs: dict[object, socket.socket] = {}
        self._clients: dict[int, object] = {}
        #: When, a number that makes it unique, the socket, the datagram and the destination.
        self._waiting: list[tuple[float, int, socket.socket, bytes, object]] = []
        self._count = 0
        self.lost = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        self._thread.join()
        for made in (self._front, *self._backs.values()):
            made.close()

    @staticmethod
    def _socket() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        made.setblocking(False)
        return made

    def _run(self) -> None:
        while not self._is_closed:
            now = time.monotonic()
            while self._waiting and self._waiting[0][0] <= now:
                _, _, made, data, to = heapq.heappop(self._waiting)
                self._send(made, data, to)
            timeout = min(self._waiting[0][0] - now, 0.05) if self._waiting else 0.05
            for key, _ in self._selector.select(timeout):
                assert isinstance(key.fileobj, socket.socket)
                self._receive(key.fileobj)

    def _receive(self, made: socket.socket) -> None:
        for _ in range(64):
            try:
                data, source = made.recvfrom(65_536)
            except OSError:
                return
            if made is self._front:
                self._schedule(self._back_of(source), data, self._server)
            else:
                self._schedule(self._front, data, self._clients[made.fileno()])

    def _back_of(self, client: object) -> socket.socket:
        if client not in self._backs:
            made = self._backs[client] = self._socket()
            self._clients[made.fileno()] = client
            self._selector.register(made, selectors.EVENT_READ)
        return self._backs[client]

    def _schedule(self, made: socket.socket, data: bytes, to: object) -> None:
        if self._random.random() < self._loss:
            self.lost += 1
            return
        for _ in range(2 if self._random.random() < self._duplicates else 1):
            if not self._delay_s:
                self._send(made, data, to)
                continue
            self._count += 1
            at = time.monotonic() + self._random.uniform(0, self._delay_s)
            heapq.heappush(self._waiting, (at, self._count, made, data, to))

    @staticmethod
    def _send(made: socket.socket, data: bytes, to: object) -> None:
        with suppress(OSError):  # As lossy as a network.
            made.sendto(data, to)  # type: ignore[arg-type]
