"""Two network namespaces, joined by veth, that a test makes and removes. Needs root on Linux."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import pytest
from programs import find, reason

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _ip_batch(lines: list[str], *options: str) -> None:
    """Commands of `ip` in one process."""
    command = ["ip", *options, "-batch", "-"]
    subprocess.run(command, check=True, capture_output=True, input="\n".join(lines), text=True)


class Network:
    """Two namespaces and the Ethernet between them."""

    def __init__(self, name: str) -> None:
        self.server, self.client = (f"ucall-{os.getpid()}{name}-{side}" for side in "sc")

    def connect(self, mtu: int, queue_count: int) -> None:
        queues = f"numrxqueues {queue_count} numtxqueues {queue_count}"
        peer = f"peer name eth0 netns {self.client} {queues}"
        link = f"link add eth0 netns {self.server} {queues} type veth {peer}"
        _ip_batch([f"netns add {self.server}", f"netns add {self.client}", link])
        for name, number in ((self.client, 1), (self.server, 2)):
            lines = [
                "link set lo up",
                f"link set eth0 mtu {mtu}",
                f"address add 192.0.2.{number}/24 dev eth0",
                f"address add 2001:db8::{number}/64 dev eth0 nodad",
                "link set eth0 up",
            ]
            _ip_batch(lines, "-n", name)

    def remove(self) -> None:
        lines = [f"netns delete {name}" for name in (self.server, self.client)]
        with suppress(subprocess.CalledProcessError):
            _ip_batch(lines, "-force")

    def has_program(self) -> bool:
        shown = subprocess.run(
            ["ip", "-n", self.server, "link", "show", "eth0"],
            check=True,
            capture_output=True,
            text=True,
        )
        return "xdp" in shown.stdout

    @contextmanager
    def lost_packets(self) -> Iterator[None]:
        """Drops what the server sends."""
        route = ["blackhole", "192.0.2.1/32"]
        _ip("-n", self.server, "route", "add", *route)
        try:
            yield
        finally:
            _ip("-n", self.server, "route", "delete", *route)

    def on_client(self) -> AbstractContextManager[None]:
        """Lets this thread make sockets and processes in the client's namespace."""
        return _inside(f"/run/netns/{self.client}")

    def on_server(self) -> AbstractContextManager[None]:
        """The same in the server's namespace."""
        return _inside(f"/run/netns/{self.server}")


@contextmanager
def _inside(path: str) -> Iterator[None]:
    with open("/proc/thread-self/ns/net") as own:
        _enter(path)
        try:
            yield
        finally:
            assert not _LIBC.setns(own.fileno(), _CLONE_NEWNET)


def _enter(path: str) -> None:
    with open(path) as namespace:
        assert not _LIBC.setns(namespace.fileno(), _CLONE_NEWNET), os.strerror(ctypes.get_errno())


def why_no_network() -> str | None:
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root on Linux"
    if find("ip") is None:
        return reason("ip")
    name = f"ucall-{os.getpid()}-probe"
    try:
        _ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"cannot make a network namespace: {error}"
    _ip("netns", "delete", name)
    return None


def why_no_xdp() -> str | None:
    """Why servers cannot receive over AF_XDP here; containers may forbid it to root, too."""
    return why_no_network() or _why_no_map()


def require_xdp() -> pytest.MarkDecorator:
    """Skips a module where AF_XDP cannot be tested."""
    why = why_no_xdp() or ""
    # A missing program is named with its package.
    text = why if " is not installed " in why else f"AF_XDP is not possible ({why})"
    return pytest.mark.skipif(bool(why), reason=text)


def _why_no_map() -> str | None:
    number = {"x86_64": 321, "aarch64": 280}.get(os.uname().machine)
    if number is None:
        return None
    # A map of one AF_XDP socket (BPF_MAP_CREATE, BPF_MAP_TYPE_XSKMAP).
    attributes = (ctypes.c_uint32 * 20)(17, 4, 4, 1)
    made = _LIBC.syscall(number, 0, attributes, ctypes.sizeof(attributes))
    if made < 0:
        return f"bpf: {os.strerror(ctypes.get_errno())}"
    os.close(made)
    return None


@contextmanager
def network(mtu: int, queues: int = 2, name: str = "") -> Iterator[Network]:
    made = Network(name)
    try:
        made.connect(mtu, queues)
        yield made
    finally:
        made.remove()
