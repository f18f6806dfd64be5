"""A proxy that delays a stream, cuts it into other pieces, and breaks it at random."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
import time


class Proxy:
    """Forwards between two addresses, in threads, until `close`."""

    def __init__(
        self, target: tuple[str, int] | str, path: str | None = None, preamble: int = 0
    ) -> None:
        """``preamble`` is the number of first bytes from the target, which carry a descriptor."""
        self._target = target
        self._greeting = preamble
        self._random = random.Random(7)
        if path is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
        else:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(path)
            self._listener.listen()
        self.address = path or self._listener.getsockname()
        self.cuts = 0
        #: The first byte that each client has sent.
        self.openings: list[bytes] = []
        #: The maximum of bytes until the next cut; 0 for no further cuts.
        self.cut_after = 0
        self._open = True
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while self._open:
            try:
                client_side, _ = self._listener.accept()
            except OSError:
                return
            kind = socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET
            server_side = socket.socket(kind)
            try:
                if kind == socket.AF_INET:
                    # Only the proxy delays bytes, not the system.
                    for end in (client_side, server_side):
                        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                server_side.connect(self._target)
                self._relay_preamble(server_side, client_side)
            except OSError:
                client_side.close()
                continue
            both = (client_side, server_side, True), (server_side, client_side, False)
            for way in both:
                threading.Thread(target=self._relay, args=way, daemon=True).start()

    def _relay_preamble(self, server_side: socket.socket, client_side: socket.socket) -> None:
        if not self._greeting:
            return
        data, descriptors, _, _ = socket.recv_fds(server_side, self._greeting, 1)
        # The receiver of the descriptor gets no more data from it than from the stream.
        socket.send_fds(client_side, [data], descriptors)
        for descriptor in descriptors:
            if self._random.random() < 0.3:
                self._cut_later(descriptor)
            else:
                os.close(descriptor)

    def _cut_later(self, descriptor: int) -> None:
        """Cuts only the channel of the descriptors."""

        def cut() -> None:
            with socket.socket(fileno=descriptor) as channel:
                channel.shutdown(socket.SHUT_RDWR)

        threading.Timer(0.01 * self._random.random(), cut).start()

    def _relay(self, source: socket.socket, target: socket.socket, is_client: bool) -> None:
        left, is_opening = -1, is_client
        try:
            while self._open:
                data = source.recv(self._random.choice([1, 100, 4096, 65536, 1 << 20]))
                if is_opening:
                    self.openings.append(data[:1])
                    is_opening = False
                if not data:
                    break
                if left < 0 and self.cut_after:
                    left = self._random.randrange(1, self.cut_after + 1)
                if self._random.random() < 0.02:
                    time.sleep(0.002)
                if 0 <= left < len(data):
                    target.sendall(data[:left])
                    self.cuts += 1
                    break
                left -= len(data) if left >= 0 else 0
                target.sendall(data)
        except OSError:
            pass
        # A reset, which loses bytes in flight, as often as an orderly end.
        resets = left >= 0 and self._random.random() < 0.5
        for end in (source, target):
            with contextlib.suppress(OSError):
                if resets:
                    linger = struct.pack("ii", 1, 0)
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._open = False
        self._listener.close()
