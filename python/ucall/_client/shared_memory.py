"""Asks a server for memory that both sides share, at the start of a connection.

A server that does not know the question refuses it or closes the connection: the client then
connects again, and shares none.
"""

from __future__ import annotations

import asyncio
import math
import select
import socket
from typing import TYPE_CHECKING, Any

from ucall._client.sockets import connect, is_deadline, timeout_error
from ucall._core import SharedMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike, NDArray

    from ucall._client.address import Address
    from ucall._client.deadline import Deadline

__all__ = ["connect_sharing", "connect_sharing_async", "empty_in", "share"]


def share(address: Address, shared_memory: bool, trusted: bool) -> None:
    """Has the connections to an address share memory with the server.

    Raises:
        TypeError, ValueError: The options contradict each other or the address.
    """
    for name, value in (("shared_memory", shared_memory), ("trusted", trusted)):
        if not isinstance(value, bool):
            raise TypeError(f"{name}: expected bool, got {type(value).__name__}")
    if not shared_memory:
        if trusted:
            raise ValueError("trusted: is for a client with shared_memory=True")
        return
    if address.socket_path is None or address.is_websocket:
        raise ValueError("shared_memory: expected an address with unix:// or tcp+unix://")
    address.trusts_shared_memory = trusted
    if address.frames is not None:
        address.frames.want()


def empty_in(
    memory: SharedMemory | None, shape: int | Sequence[int], dtype: DTypeLike
) -> NDArray[Any]:
    """An array without values, in memory if that is shared and has room.

    Raises:
        TypeError, ValueError: There is no such dtype or shape, or arrays of it are not sent.
    """
    import numpy as np

    # The system provides pages as they are written, so this one costs little.
    array = np.empty(shape, dtype)
    shared = None if memory is None else memory.empty(array.shape, array.dtype)
    return array if shared is None else shared


def connect_sharing(
    address: Address, deadline: Deadline
) -> tuple[socket.socket, SharedMemory | None]:
    """A connected socket in blocking mode, and the memory of its connection.

    Raises:
        ucall.ConnectionError, ucall.TimeoutError: See `connect`.
    """
    connected = connect(address, deadline)
    try:
        SharedMemory.ask(connected.fileno())
        poll = select.poll()
        poll.register(connected, select.POLLIN)
        left = deadline.left()
        if not poll.poll(None if left is None else math.ceil(left * 1000)):
            raise timeout_error(deadline.seconds, f"cannot connect to {address.name}")
        return connected, _answer(connected, address)
    except OSError as error:
        connected.close()
        if is_deadline(error):
            raise
        return connect(address, deadline), None
    except BaseException:
        connected.close()
        raise


async def connect_sharing_async(address: Address) -> tuple[socket.socket, SharedMemory | None]:
    """The same in asyncio, with a socket that does not block.

    Raises:
        OSError: No server accepts the connection.
    """
    connected = await _connect(address)
    try:
        SharedMemory.ask(connected.fileno())
        await _readable(connected)
        return connected, _answer(connected, address)
    except OSError:
        connected.close()
        return await _connect(address), None
    except BaseException:
        connected.close()
        raise


async def _connect(address: Address) -> socket.socket:
    assert address.socket_path is not None
    made = socket.socket(socket.AF_UNIX)
    try:
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, address.socket_path)
        return made
    except BaseException:
        made.close()
        raise


async def _readable(connected: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connected, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connected)


def _answer(connected: socket.socket, address: Address) -> SharedMemory | None:
    return SharedMemory.answered(connected.fileno(), trusted=bool(address.trusts_shared_memory))
