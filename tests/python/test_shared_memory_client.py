"""Clients with shared memory, in threads and in asyncio."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import socket
import sys
import threading
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from both_clients import NewClient
from forking import run
from serving import Serve
from shared_memory import MIB, descriptors, mappings, socket_path

import ucall
from harness import eventually
from ucall import aio
from ucall.client import Client

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is sealed on Linux")

__all__ = ["socket_path"]

#: The arrays of the server's functions, and whether they lay in shared memory.
kept: list[np.ndarray] = []


def lies_in_memory(array: np.ndarray) -> bool:
    """Whether an array is in shared memory of this process, which has both sides."""
    address = array.ctypes.data
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            start, end = (int(number, 16) for number in line.split()[0].split("-"))
            if start <= address < end:
                return "memfd:ucall" in line
    return False


def double(array: np.ndarray) -> np.ndarray:
    array += array  # It is writable.
    return array


def was_shared(array: np.ndarray) -> bool:
    return lies_in_memory(array)


async def later(array: np.ndarray) -> np.ndarray:
    return array + 1


def keep(array: np.ndarray) -> int:
    kept.append(array)
    return len(kept)


def echo(value: Any) -> Any:
    return value


def echo_array(array: np.ndarray) -> np.ndarray:
    return array


def keep_and_echo(array: np.ndarray) -> np.ndarray:
    kept.append(array)
    return array


def echo_part(array: np.ndarray) -> np.ndarray:
    return array[array.size // 2 :]


def address(array: np.ndarray) -> int:
    return array.ctypes.data


@pytest.mark.one_of("engine", "scheme")
@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("scheme", ["unix", "tcp+unix"])
def test_arrays_pass_through_shared_memory(
    serve: Serve, new_client: NewClient, socket_path: str, scheme: str, trusted: bool
) -> None:
    serve(double, later, was_shared, echo, uds=socket_path, trusted=trusted)
    before = mappings()
    with new_client(f"{scheme}://{socket_path}", shared_memory=True, trusted=trusted) as client:
        for turn in range(6):
            array = np.arange(200_000 + turn, dtype=np.float32).reshape(-1, 1)
            result = client.double(array).numpy
            assert (result == 2 * array).all()
            assert lies_in_memory(result) == trusted
            assert result.flags.writeable
            assert (client.later(array).numpy == array + 1).all()
        assert client.was_shared(np.zeros(20_000)).json == trusted
        assert client.was_shared(np.zeros(8_000)).json is False
        del result
        gc.collect()
        # Slots are used again, in both directions.
        assert 0 < mappings() - before <= 12
        # What else a client sends.
        assert client.echo(5).json == 5
        assert client.echo(bytes(100_000)).bytes == bytes(100_000)
        assert (client.double(np.asfortranarray(np.ones((300, 300)))).numpy == 2).all()
        with pytest.raises(ucall.RPCError):
            client.double("x").numpy  # noqa: B018
    assert eventually(lambda: mappings() == before)


@pytest.mark.one_of("engine")
def test_arrays_outlive_calls_and_connections(
    serve: Serve, new_client: NewClient, socket_path: str
) -> None:
    serve(keep, double, uds=socket_path, trusted=True)
    before = descriptors(), mappings()
    results = []
    with new_client(f"unix://{socket_path}", shared_memory=True, trusted=True) as client:
        for turn in range(70):  # More than there are slots.
            assert client.keep(np.full(20_000, turn)).json == turn + 1
            results.append(client.double(np.full(20_000, turn)).numpy)
    for turn in range(70):
        assert (kept[turn] == turn).all()
        assert (results[turn] == 2 * turn).all()
    kept.clear()
    del results
    gc.collect()
    assert eventually(lambda: (descriptors(), mappings()) == before)


@pytest.mark.one_of("engine")
@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("scheme", ["unix", "tcp+unix"])
def test_arrays_that_are_made_in_shared_memory_are_filled_and_sent_again(
    serve: Serve, socket_path: str, scheme: str, trusted: bool
) -> None:
    serve(address, later, echo_array, uds=socket_path, trusted=trusted)
    uri = f"{scheme}://{socket_path}"
    before = descriptors(), mappings()
    with Client(uri, shared_memory=True, trusted=trusted) as client:
        array = client.empty((500, 400), np.float32)
        assert lies_in_memory(array) and array.shape == (500, 400) and array.dtype == np.float32
        other = client.empty(70_000, np.uint8)
        for turn in range(70):
            array[:] = turn
            other[:] = turn
            assert (client.later(array).numpy == turn + 1).all()
            assert (client.echo_array(other).numpy == turn).all()
            result = client.echo_array(array).numpy
            array[:] = -1  # The result is another array.
            assert (result == turn).all()
        # Both sides map the slots of that array, once each.
        if trusted:
            assert len({client.address(array).json for _ in range(10)}) == 1
        assert mappings() - before[1] <= 16
        if trusted:
            # Copies would have one address, that of the first free slot.
            more = client.empty((500, 400), np.float32)
            assert client.address(more).json != client.address(array).json
            del more
        assert not lies_in_memory(client.empty(100))
        with pytest.raises(TypeError):
            client.empty(100_000, object)
        with pytest.raises(ValueError, match="negative"):
            client.empty(-1)
    array[:] = 5  # It outlives the client.
    del array, other, result
    gc.collect()
    assert eventually(lambda: (descriptors(), mappings()) == before)


@pytest.mark.one_of("engine")
@pytest.mark.parametrize("scheme", ["unix", "tcp+unix"])
def test_arrays_that_are_made_in_shared_memory_in_asyncio(
    serve: Serve, socket_path: str, scheme: str
) -> None:
    serve(address, later, uds=socket_path, trusted=True)

    async def main() -> None:
        uri = f"{scheme}://{socket_path}"
        async with aio.Client(uri, shared_memory=True, trusted=True) as client:
            array = await client.empty((500, 400), np.float32)
            assert lies_in_memory(array)
            places = set()
            for turn in range(20):
                array[:] = turn
                places.add((await client.address(array)).json)
                assert ((await client.later(array)).numpy == turn + 1).all()
            assert len(places) == 1

    asyncio.run(main())


def test_without_shared_memory_they_are_ordinary_arrays(serve: Serve, socket_path: str) -> None:
    serve(later, uds=socket_path)
    for options in ({}, {"shared_memory": True}):
        with Client(f"unix://{socket_path}", **options) as client:
            assert lies_in_memory(client.empty(100_000)) == bool(options)


@pytest.mark.one_of("engine")
def test_a_result_that_is_the_param_is_passed_back(
    serve: Serve, new_client: NewClient, socket_path: str
) -> None:
    serve(double, keep_and_echo, echo_part, uds=socket_path, trusted=True)
    before = mappings()
    with new_client(f"unix://{socket_path}", shared_memory=True, trusted=True) as client:
        array = np.ones(40_000)
        for _ in range(100):
            result = client.double(array).numpy
            assert (result == 2).all() and lies_in_memory(result) and result.flags.writeable
            result += 1
            assert (array == 1).all()
        # A slot of the client for the param and one for the last result: the server has none.
        assert mappings() - before <= 2 * 2
        # What the function keeps, and a part of a param, are copied.
        kept.clear()
        result = client.keep_and_echo(array).numpy
        kept[0][:] = 7
        assert (result == 1).all()
        part = client.echo_part(array).numpy
        assert part.shape == (20_000,) and (part == 1).all()
        kept.clear()


@pytest.mark.one_of("engine")
def test_calls_by_the_thousand_make_no_memory(
    serve: Serve, new_client: NewClient, socket_path: str
) -> None:
    serve(double, later, uds=socket_path)
    with new_client(f"unix://{socket_path}", shared_memory=True) as client:
        array = np.ones(100_000)
        for _ in range(20):
            client.double(array)
            client.later(array)
        before = resource.getrusage(resource.RUSAGE_SELF)
        for _ in range(1000):
            assert client.double(array).numpy[-1] == 2
        after = resource.getrusage(resource.RUSAGE_SELF)
        # New memory of a call would be 200 pages on each side.
        assert after.ru_minflt - before.ru_minflt < 1000 * 20
        assert after.ru_maxrss - before.ru_maxrss < 20_000


@pytest.mark.one_of("engine")
@pytest.mark.parametrize("options", [{"shared_memory": False}, {"max_shared_bytes": MIB}])
def test_calls_go_through_the_socket_without_shared_memory(
    serve: Serve, new_client: NewClient, socket_path: str, options: dict[str, Any]
) -> None:
    serve(was_shared, double, uds=socket_path, trusted=True, **options)
    with new_client(f"unix://{socket_path}", shared_memory=True) as client:
        assert client.was_shared(np.zeros(200_000)).json is False
        assert (client.double(np.ones(200_000)).numpy == 2).all()
        if options != {"shared_memory": False}:
            assert client.was_shared(np.zeros(100_000)).json is True


def test_a_server_that_does_not_know_the_question(new_client: NewClient, socket_path: str) -> None:
    """As one of an earlier version, which refuses the question and frames."""

    def answer(connected: socket.socket) -> None:
        with connected:
            while request := connected.recv(4096):
                head, _, body = request.partition(b"\r\n\r\n")
                if not head.startswith(b"POST") or body.startswith(b"\xb1"):
                    connected.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
                    return
                id = json.loads(body)["id"]
                reply = json.dumps({"jsonrpc": "2.0", "id": id, "result": 5}).encode()
                length = b"Content-Length: %d" % len(reply)
                connected.sendall(b"HTTP/1.1 200 OK\r\n%s\r\n\r\n%s" % (length, reply))

    def accept() -> None:
        with suppress(OSError):
            while True:
                answer(listener.accept()[0])

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(socket_path)
        listener.listen()
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            with new_client(f"unix://{socket_path}", shared_memory=True) as client:
                assert client.anything(1).json == 5
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


FORKING = """
import os, sys
import numpy as np
from ucall.client import Client

path = sys.argv[1]
with Client(f"unix://{path}", shared_memory=True, trusted=True) as client:
    mine = client.double(np.ones(20_000)).numpy
    child = os.fork()
    own = client.double(np.full(20_000, 3.0)).numpy
    assert (own == 6).all() and (mine == 2).all()
    if child == 0:
        del mine, own  # They are the parent's to return.
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for _ in range(3):
        assert (client.double(np.full(20_000, 5.0)).numpy == 10).all()
    assert (mine == 2).all()
    print("done")
"""


@pytest.mark.one_of("engine")
def test_a_forked_child_shares_nothing_of_its_parent(serve: Serve, socket_path: str) -> None:
    serve(double, uds=socket_path, trusted=True)
    ended = run([sys.executable, "-c", FORKING, socket_path], text=True)
    assert (ended.stdout, ended.stderr) == ("done\n", "")


KILLED = """
import os, sys
import numpy as np
from ucall.client import Client

client = Client(f"unix://{sys.argv[1]}", shared_memory=True, trusted=True)
kept = [client.double(np.ones(20_000)).numpy for _ in range(3)]
os.kill(os.getpid(), 9)
"""


@pytest.mark.one_of("engine")
def test_a_client_that_is_killed_leaves_nothing(serve: Serve, socket_path: str) -> None:
    serve(double, uds=socket_path, trusted=True)
    before = descriptors(), mappings()
    for _ in range(2):
        assert run([sys.executable, "-c", KILLED, socket_path]).returncode == -9
    assert eventually(lambda: (descriptors(), mappings()) == before)


@pytest.mark.parametrize("new", [Client, aio.Client])
def test_options_that_do_not_fit(new: Any) -> None:
    for address in ["http://localhost", "tcp://localhost", "ws+unix:///a", "udp://localhost"]:
        with pytest.raises(ValueError, match="shared_memory: expected an address with unix://"):
            new(address, shared_memory=True)
    with pytest.raises(ValueError, match="one address"):
        new(["unix:///a", "unix:///b"], shared_memory=True)
    with pytest.raises(ValueError, match="trusted"):
        new("unix:///a", trusted=True)
    with pytest.raises(TypeError, match="shared_memory"):
        new("unix:///a", shared_memory="yes")
