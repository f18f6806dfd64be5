"""Clients that read a reply slowly, as slowhttptest's slow read does, but with POST.

    python bench/slow_readers.py PORT CONNECTIONS SECONDS FILE

Each sets its receive buffer to the kernel's minimum, asks for 100 kB, and reads five bytes every
three seconds. At the end the program writes the number of closed connections, in slowhttptest's
columns.
"""

import contextlib
import socket
import sys
import time
from pathlib import Path

CONNECTIONS_A_SECOND = 1000
REPLY_BYTES = 100_000
TURN_SECONDS = 3
BODY = b'{"jsonrpc":"2.0","method":"text","params":[%d],"id":1}' % REPLY_BYTES
REQUEST = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


def asked(port: int) -> socket.socket:
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    peer.connect(("127.0.0.1", port))
    peer.sendall(REQUEST)
    peer.setblocking(False)
    return peer


def is_open(peer: socket.socket) -> bool:
    """Reads a little. A server that closes resets the connection after the unread bytes."""
    with contextlib.suppress(BlockingIOError):
        try:
            return peer.recv(5) != b""
        except ConnectionError:
            return False
    return True


def main() -> None:
    port, count, seconds = map(int, sys.argv[1:4])
    start = time.monotonic()
    peers = []
    for number in range(count):
        time.sleep(max(0, start + number / CONNECTIONS_A_SECOND - time.monotonic()))
        peers.append(asked(port))
    while time.monotonic() - start < seconds - TURN_SECONDS:
        time.sleep(TURN_SECONDS)
        peers = [peer for peer in peers if is_open(peer)]
    Path(sys.argv[4]).write_text(f"Closed,Service Available\n{count - len(peers)},1\n")


main()
