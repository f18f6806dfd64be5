"""Calls over AF_XDP, between two network namespaces that the tests make and remove."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import networks
import pytest
from networks import Network

import ucall
from harness import eventually
from ucall.client import Client

_ADDRESSES = ["192.0.2.2", "[2001:db8::2]"]

#: Serves until its input ends. `kernel_datagrams` counts those of the kernel's own UDP.
_SERVER = """
import asyncio, importlib, logging, sys
from pathlib import Path
logging.basicConfig(stream=sys.stdout, format="%(message)s")
module, host, port = sys.argv[1:]
server = importlib.import_module(module).Server(
    host=host, port=int(port), udp=True, xdp="eth0", max_datagram_bytes=8000, max_threads=2
)

@server
def sum(a: int, b: int) -> int:
    return a + b

@server
async def later(a: int) -> int:
    await asyncio.sleep(0.01)
    return a

@server
def length(text: str) -> int:
    return len(text)

@server
def text(length: int) -> str:
    return "x" * length

@server
def kernel_datagrams() -> int:
    folder = Path("/proc/thread-self/net")
    lines = (folder / "snmp").read_text().splitlines()
    names, values = [line.split() for line in lines if line.startswith("Udp: ")]
    ipv4 = dict(zip(names, values))["InDatagrams"]
    lines = (folder / "snmp6").read_text().splitlines()
    ipv6 = dict(line.split() for line in lines)["Udp6InDatagrams"]
    return int(ipv4) + int(ipv6)

@server
def dropped() -> int:
    return server.stats()["datagrams"]["dropped"]

server.start()
print("serving", flush=True)
sys.stdin.read()
server.stop()
"""


pytestmark = [
    pytest.mark.skipif(networks.why_no_network() is not None, reason=str(networks.why_no_network()))
]


@contextmanager
def _serving(
    network: Network, module: str, host: str, *prefix: str, port: int = 8000
) -> Iterator[subprocess.Popen[str]]:
    inside = ["ip", "netns", "exec", network.server, *prefix]
    command = [*inside, sys.executable, "-u", "-c", _SERVER, module, host, str(port)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def network() -> Iterator[Network]:
    with networks.network(1500) as network:
        yield network


def _until_serving(process: subprocess.Popen[str]) -> str:
    """What the server has logged before it serves."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        if line == "serving\n":
            return "".join(lines)
        lines.append(line)
    raise AssertionError("".join(lines))


def _call_all_ways(client: Client) -> None:
    before = client.kernel_datagrams().json
    for number in range(100):
        assert client.sum(number, 1).json == number + 1
    with client.batch() as batch:
        responses = [batch.sum(number, 2) for number in range(500)]
    assert [response.json for response in responses] == list(range(2, 502))
    assert client.later(a=4).json == 4
    assert client.length("x" * 1000).json == 1000
    assert client.nothing().error is not None
    # None of these has passed the kernel's UDP.
    assert client.kernel_datagrams().json == before
    # Fragments, and a reply that needs them.
    assert client.length("x" * 4000).json == 4000
    assert client.kernel_datagrams().json > before
    assert client.text(4000).json == "x" * 4000
    assert client.dropped().json == 0


@pytest.mark.parametrize("address", _ADDRESSES)
@pytest.mark.parametrize("host", ["any", "one"])
def test_calls_pass_the_kernel(network: Network, engine: str, address: str, host: str) -> None:
    bound = address.strip("[]") if host == "one" else "::" if "[" in address else "0.0.0.0"
    with _serving(network, f"ucall.{engine}", bound) as process:
        assert _until_serving(process) == "xdp: eth0: 2 queues in native mode with copies\n"
        with network.on_client():
            for _ in range(8):  # other ports, and so other queues
                with Client(f"udp://{address}:8000", timeout=60) as client:
                    _call_all_ways(client)
            with Client(f"http://{address}:8000") as client:
                assert client.sum(1, 2).json == 3
        assert network.has_program()
        process.communicate()
        assert process.returncode == 0
    assert not network.has_program()


def test_a_driver_without_xdp_gets_generic_mode(engine: str) -> None:
    # veth runs no program when its packets are longer than a page.
    with (
        networks.network(9000) as network,
        _serving(network, f"ucall.{engine}", "0.0.0.0") as process,
    ):
        assert _until_serving(process) == "xdp: eth0: 2 queues in generic mode\n"
        with network.on_client(), Client("udp://192.0.2.2:8000", timeout=60) as client:
            for number in range(100):
                assert client.sum(number, 1).json == number + 1
            before = client.kernel_datagrams().json
            # Whole, but longer than a frame.
            assert client.length("x" * 4000).json == 4000
            assert client.kernel_datagrams().json == before + 1


def test_a_killed_server_leaves_no_program(network: Network, engine: str) -> None:
    for _ in range(2):
        with _serving(network, f"ucall.{engine}", "0.0.0.0") as process:
            _until_serving(process)
            with network.on_client(), Client("udp://192.0.2.2:8000", timeout=60) as client:
                assert client.sum(1, 2).json == 3
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert eventually(lambda: not network.has_program())


def test_bad_datagrams_are_counted_and_not_answered(network: Network) -> None:
    with _serving(network, "ucall", "0.0.0.0") as process:
        _until_serving(process)
        with (
            network.on_client(),
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wire,
            Client("udp://192.0.2.2:8000", timeout=60) as client,
        ):
            wire.connect(("192.0.2.2", 8000))
            wire.setblocking(False)
            for document in (b"", b"{", b"[]", b'{"jsonrpc":"2.0","id":1,"result":2}'):
                wire.send(document)
            assert client.sum(1, 2).json == 3
            with pytest.raises(BlockingIOError):
                wire.recv(2048)


def test_a_second_server_and_missing_capabilities_are_named(network: Network) -> None:
    with _serving(network, "ucall", "0.0.0.0") as first:
        _until_serving(first)
        with _serving(network, "ucall", "0.0.0.0", port=8001) as second:
            assert "another server has the interface" in second.communicate()[0]
    less = ["setpriv", "--bounding-set=-bpf,-sys_admin,-net_admin", "--inh-caps=-all"]
    with _serving(network, "ucall", "0.0.0.0", *less) as process:
        said = process.communicate()[0]
        assert "xdp: eth0: Operation not permitted" in said
        assert "missing capabilities: CAP_NET_ADMIN, CAP_BPF" in said


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda: ucall.Server(port=0, xdp="eth0"), "xdp: has no effect without udp"),
        (lambda: _start(xdp="no-such-card"), "xdp: no-such-card: "),
        (lambda: _start(xdp="lo"), "xdp: lo: expected an Ethernet interface"),
    ],
)
def test_bad_options_are_refused(change: Callable[[], Any], expected: str) -> None:
    with pytest.raises((ValueError, OSError), match=expected):
        change()


def _start(**options: Any) -> None:
    server = ucall.Server(port=0, udp=True, **options)
    server.start()
    server.stop()
