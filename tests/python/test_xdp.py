"""Calls over AF_XDP, between two network namespaces that the tests make and remove."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import networks
import pytest
from networks import Network

import ucall
from harness import eventually
from ucall.client import Client
from wire import UdpWire

_ADDRESSES = ["192.0.2.2", "[2001:db8::2]"]

_FUNCTIONS = """
import asyncio, ctypes, importlib, json, logging, os, socket, sys, ucall
from pathlib import Path
logging.basicConfig(stream=sys.stdout, format="%(message)s")
module, host, port, options = sys.argv[1:]
options = json.loads(options)
options = {"udp": True, "xdp": "eth0", "max_datagram_bytes": 8000, "max_threads": 2} | options
workers = options.pop("workers", None)
options = ucall.options.arguments(options)
server = importlib.import_module(module).Server(host=host, port=int(port), **options)

@server
def sum(a: int, b: int) -> int:
    return a + b

@server
def pid() -> int:
    return os.getpid()

@server
def turns() -> int:
    return server.stats()["turns"]

@server
def busy_polling() -> list:
    # Python's sockets cannot have this family.
    system, value = ctypes.CDLL(None), ctypes.c_int()
    def option(number: int, name: int) -> int:
        length = ctypes.c_uint(4)
        where = ctypes.byref(value), ctypes.byref(length)
        return -1 if system.getsockopt(number, socket.SOL_SOCKET, name, *where) else value.value
    sockets = [it for it in map(int, os.listdir("/proc/self/fd")) if option(it, 39) == 44]
    names = (69, 46)  # SO_PREFER_BUSY_POLL, SO_BUSY_POLL
    return [[option(number, name) for name in names] for number in sockets]

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
"""

#: Serves until its input ends. `kernel_datagrams` counts those of the kernel's own UDP.
_SERVER = f"""{_FUNCTIONS}
server.start()
print("serving", flush=True)
sys.stdin.read()
server.stop()
"""

#: Serves from worker processes until SIGTERM.
_WORKERS = f"""{_FUNCTIONS}
logging.getLogger("ucall").setLevel(logging.INFO)
server.run(workers=workers)
"""

pytestmark = networks.require_xdp()


def _command(
    network: Network, source: str, module: str, host: str, port: int, options: dict[str, Any]
) -> list[str]:
    arguments = [module, host, str(port), json.dumps(options)]
    return [*_inside(network), sys.executable, "-u", "-c", source, *arguments]


def _inside(network: Network) -> list[str]:
    return ["ip", "netns", "exec", network.server]


@contextmanager
def _serving(
    network: Network, module: str, host: str, *prefix: str, port: int = 8000, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    command = _command(network, _SERVER, module, host, port, options)
    command[4:4] = prefix
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
    for number in range(30):
        assert client.sum(number, 1).json == number + 1
    with client.batch() as batch:
        responses = [batch.sum(number, 2) for number in range(200)]
    assert [response.json for response in responses] == list(range(2, 202))
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
        line = _until_serving(process)
        assert line.startswith("xdp: eth0: 2 queues in generic mode (not native: "), line
        with network.on_client(), Client("udp://192.0.2.2:8000", timeout=60) as client:
            for number in range(100):
                assert client.sum(number, 1).json == number + 1
            before = client.kernel_datagrams().json
            # Whole, but longer than a frame.
            assert client.length("x" * 4000).json == 4000
            assert client.kernel_datagrams().json == before + 1


def test_a_killed_server_leaves_no_program(network: Network, engine: str) -> None:
    # The kernel closes the sockets of an io_uring after its process has ended.
    for port in (8000, 8001):
        with _serving(network, f"ucall.{engine}", "0.0.0.0", port=port) as process:
            _until_serving(process)
            with network.on_client(), Client(f"udp://192.0.2.2:{port}", timeout=60) as client:
                assert client.sum(1, 2).json == 3
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert eventually(lambda: not network.has_program())


def test_bad_datagrams_are_counted_and_not_answered(network: Network) -> None:
    with _serving(network, "ucall", "0.0.0.0") as process:
        _until_serving(process)
        with (
            network.on_client(),
            UdpWire(8000, host="192.0.2.2") as wire,
            Client("udp://192.0.2.2:8000", timeout=60) as client,
        ):
            wire.socket.setblocking(False)
            for document in (b"", b"{", b"[]", b'{"jsonrpc":"2.0","id":1,"result":2}'):
                wire.send(document)
            assert client.sum(1, 2).json == 3
            with pytest.raises(BlockingIOError):
                wire.message()


def test_a_second_server_and_missing_capabilities_are_named(network: Network) -> None:
    with _serving(network, "ucall", "0.0.0.0") as first:
        _until_serving(first)
        with _serving(network, "ucall", "0.0.0.0", port=8001) as second:
            assert "another server has the interface" in second.communicate()[0]
    less = ["setpriv", "--bounding-set=-bpf,-sys_admin,-net_admin", "--inh-caps=-all"]
    # The kernel closes the socket of the first after its process has ended.
    with _serving(network, "ucall", "0.0.0.0", *less, port=8002) as process:
        said = process.communicate()[0]
        assert "xdp: eth0: Operation not permitted" in said
        assert "missing capabilities: CAP_NET_ADMIN, CAP_BPF" in said


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda: _start(xdp_busy_poll=True), "xdp_busy_poll: has no effect without xdp"),
        (lambda: _start(xdp="unix:/no/such"), "xdp: unix:/no/such: No such file"),
        (lambda: _start(xdp="no-such-card"), "xdp: no-such-card: "),
        (lambda: _start(xdp="lo"), "xdp: lo: expected an Ethernet interface"),
    ],
)
def test_bad_options_are_refused(change: Callable[[], Any], expected: str) -> None:
    with pytest.raises((ValueError, OSError), match=expected):
        change()


def _start(**options: Any) -> None:
    server = ucall.Server(port=0, **ucall.options.arguments({"udp": True} | options))
    server.start()
    server.stop()


def test_busy_polling_answers_several_calls_in_a_turn(network: Network, engine: str) -> None:
    with _serving(network, f"ucall.{engine}", "0.0.0.0", xdp_busy_poll=True) as process:
        _until_serving(process)
        with network.on_client(), Client("udp://192.0.2.2:8000", timeout=60) as client:
            assert client.busy_polling().json == [[1, 20]] * 2
            _call_all_ways(client)

            def take_fewer_turns() -> bool:
                before = client.turns().json
                for number in range(200):
                    assert client.sum(number, 1).json == number + 1
                return client.turns().json - before < 200

            assert eventually(take_fewer_turns)
        process.communicate()
        assert process.returncode == 0


def test_without_busy_polling_the_sockets_have_the_defaults(network: Network) -> None:
    with _serving(network, "ucall", "0.0.0.0") as process:
        _until_serving(process)
        with network.on_client(), Client("udp://192.0.2.2:8000", timeout=60) as client:
            assert [options[0] for options in client.busy_polling().json] == [0, 0]


class _Workers:
    """Worker processes, and their log."""

    def __init__(self, network: Network, process: subprocess.Popen[bytes], log: Path) -> None:
        self.network, self.process, self._log = network, process, log

    def text(self) -> str:
        return self._log.read_text()

    def bound(self) -> int:
        """How many times a worker has taken its queue."""
        return self.text().count("xdp: eth0: 1 of 2 queues in native mode with copies\n")

    def pids(self) -> set[int]:
        """The workers that answer, past the kernel's UDP."""
        with self.network.on_client():
            return {_ask(number) for number in range(64)}


def _ask(number: int) -> int:
    """The worker of one flow."""
    with Client("udp://192.0.2.2:8000", timeout=60) as client:
        before = client.kernel_datagrams().json
        pid = client.pid().json
        assert client.kernel_datagrams().json == before
        return pid


@contextmanager
def _working(network: Network, folder: Path, **options: Any) -> Iterator[_Workers]:
    command = _command(network, _WORKERS, "ucall", "0.0.0.0", 8000, options)
    log = folder / "log"
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            yield _Workers(network, process, log)
        finally:
            process.terminate()


def test_workers_share_the_queues(network: Network, tmp_path: Path) -> None:
    with _working(network, tmp_path, workers=2) as workers:
        assert eventually(lambda: workers.bound() == 2), workers.text()
        before = workers.pids()
        assert len(before) == 2
        # A worker that dies is replaced, and its successor takes its queue.
        killed = before.pop()
        os.kill(killed, signal.SIGKILL)
        assert eventually(lambda: workers.bound() == 3), workers.text()
        after = workers.pids()
        assert len(after) == 2 and before < after and killed not in after
        # So do successors of workers that end later.
        workers.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: workers.bound() == 5), workers.text()
        successors = workers.pids()
        assert len(successors) == 2 and not successors & after
    assert eventually(lambda: not network.has_program())


def test_each_worker_needs_a_queue(tmp_path: Path) -> None:
    expected = "xdp: eth0: it has 1 queue, and each of 2 workers needs one"
    with (
        networks.network(1500, queues=1) as network,
        _working(network, tmp_path, workers=2) as workers,
    ):
        assert eventually(lambda: expected in workers.text()), workers.text()
        assert workers.process.wait() == 1


@contextmanager
def _setting_up(
    network: Network, path: Path, *prefix: str, user: str = "nobody"
) -> Iterator[subprocess.Popen[str]]:
    """`ucall-xdp-setup` for a user without capabilities."""
    command = [*_inside(network), *prefix, sys.executable, "-m", "ucall", "xdp-setup"]
    with subprocess.Popen(
        [*command, "eth0", str(path), "--user", user], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == f"ucall-xdp-setup: eth0 at {path}\n"
            yield process
        finally:
            process.terminate()
    assert not path.exists()


def _as_user(number: int) -> list[str]:
    """Without capabilities; skips if other users cannot reach the interpreter or the package."""
    user = [f"--reuid={number}", f"--regid={number}", "--clear-groups"]
    command = ["setpriv", *user, "--bounding-set=-all"]
    tried = subprocess.run(
        [*command, sys.executable, "-c", "import ucall"], capture_output=True, text=True
    )
    if tried.returncode:
        pytest.skip(f"as another user: {tried.stderr.strip()}")
    return command


@pytest.fixture
def small() -> Iterator[Network]:
    """With one queue, whose memory every user may lock."""
    with networks.network(1500, queues=1) as network:
        yield network


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can read."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


NOBODY = pwd.getpwnam("nobody").pw_uid


def test_a_server_without_capabilities(small: Network, open_folder: Path, engine: str) -> None:
    network, path = small, open_folder / "xdp.sock"
    # The limit of locked memory is for all processes of a user, so each variant has its own.
    user = {"posix": "nobody", "uring": "daemon"}[engine]
    prefix = _as_user(pwd.getpwnam(user).pw_uid)
    xdp = {"xdp": f"unix:{path}", "xdp_busy_poll": True}
    with _setting_up(network, path, user=user):
        for _ in range(2):
            with _serving(network, f"ucall.{engine}", "0.0.0.0", *prefix, **xdp) as process:
                said = _until_serving(process)
                assert said == "xdp: eth0: 1 queue in native mode with copies\n"
                status = Path(f"/proc/{process.pid}/status").read_text().split()
                assert status[status.index("CapEff:") + 1] == "0" * 16
                with network.on_client(), Client("udp://192.0.2.2:8000", timeout=60) as client:
                    assert client.busy_polling().json == [[1, 20]]
                    _call_all_ways(client)
                # The program is the server's, and not of the process that has attached it.
                process.send_signal(signal.SIGKILL)
                process.wait()
            assert eventually(lambda: not network.has_program())


def test_another_user_gets_nothing(network: Network, open_folder: Path) -> None:
    path, other = open_folder / "xdp.sock", _as_user(NOBODY - 1)
    with (
        _setting_up(network, path),
        _serving(network, "ucall", "0.0.0.0", *other, xdp=f"unix:{path}") as process,
    ):
        assert f"xdp: unix:{path}: Permission denied" in process.communicate()[0]
        assert not network.has_program()


def test_a_server_in_another_network_gets_nothing(network: Network, open_folder: Path) -> None:
    path = open_folder / "xdp.sock"
    with (
        _setting_up(network, path),
        networks.network(1500, name="other") as other,
        _serving(other, "ucall", "0.0.0.0", *_as_user(NOBODY), xdp=f"unix:{path}") as process,
    ):
        said = process.communicate()[0]
        assert f"xdp: unix:{path}: the server is in another network namespace" in said
        assert not network.has_program() and not other.has_program()


def test_the_capabilities_that_the_setup_lacks_are_named(
    network: Network, open_folder: Path
) -> None:
    path = open_folder / "xdp.sock"
    less = ["setpriv", "--bounding-set=-bpf,-sys_admin", "--inh-caps=-all"]
    with (
        _setting_up(network, path, *less),
        _serving(network, "ucall", "0.0.0.0", *_as_user(NOBODY), xdp=f"unix:{path}") as process,
    ):
        said = process.communicate()[0]
        assert f"xdp: unix:{path}: xdp: eth0: " in said
        assert "missing capabilities: CAP_BPF" in said


def test_a_setup_with_workers_is_refused(network: Network, tmp_path: Path) -> None:
    expected = "xdp: with workers, expected an interface, not ucall-xdp-setup"
    with _working(network, tmp_path, workers=2, xdp="unix:/run/none") as workers:
        assert eventually(lambda: expected in workers.text()), workers.text()
        assert workers.process.wait() == 1
