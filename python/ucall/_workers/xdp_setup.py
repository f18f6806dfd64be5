"""``ucall-xdp-setup``: hands AF_XDP over to a server without capabilities.

    ucall-xdp-setup eth0 /run/ucall-xdp.sock --user app

A server of that user with ``xdp="unix:/run/ucall-xdp.sock"`` sends its UDP socket, and gets what
only a privileged process can make: the program, attached for the address of that socket, and the
sockets of the queues. This process keeps none of them, and serves the next server.
"""

from __future__ import annotations

import argparse
import logging
import os
import pwd
import signal
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ucall import _core
from ucall._cli.arguments import Parser

__all__ = ["main"]

log = logging.getLogger("ucall")

#: A server sends its request at once.
_REQUEST_TIMEOUT_S = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until a signal; returns the exit status."""
    parser = Parser(
        prog="ucall-xdp-setup",
        description="Hands AF_XDP over to servers without capabilities: docs/udp.md. Needs "
        "CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF.",
    )
    parser.add_argument("interface", help="the network interface, such as eth0")
    parser.add_argument("path", help="the Unix socket that servers connect to: xdp='unix:PATH'")
    parser.add_argument("--user", type=_user, help="who may connect, besides root (default: root)")
    given = parser.parse_args(arguments)
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with _listening(given.path, given.user) as listener:
            log.info("ucall-xdp-setup: %s at %s", given.interface, given.path)
            while True:
                connection, _ = listener.accept()
                with connection:
                    _serve(given.interface, connection)
    except KeyboardInterrupt:
        return 0
    except OSError as failure:
        log.error("ucall-xdp-setup: %s: %s", given.path, failure.strerror or failure)
        return 1


def _user(name: str) -> int:
    try:
        return int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except KeyError:
        raise argparse.ArgumentTypeError(f"there is no user {name!r}") from None


@contextmanager
def _listening(path: str, user: int | None) -> Iterator[socket.socket]:
    """A socket that only one user can connect to. Removes it in the end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        if _is_abandoned(path):
            os.unlink(path)
        before = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        try:
            if user is not None:
                os.chown(path, user, -1)
            listener.listen()
            yield listener
        finally:
            os.unlink(path)


def _is_abandoned(path: str) -> bool:
    """Whether an earlier process has left its socket there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            pass
    return False


def _serve(interface: str, connection: socket.socket) -> None:
    limit = struct.pack("ll", _REQUEST_TIMEOUT_S, 0)
    for name in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, name, limit)
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", peer)
    try:
        _core.hand_over_xdp(interface, connection.fileno())
    except OSError as failure:
        log.warning("process %d of user %d got nothing: %s", pid, uid, failure)
    else:
        log.info("process %d of user %d got the queues of %s", pid, uid, interface)


if __name__ == "__main__":
    sys.exit(main())
