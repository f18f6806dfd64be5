"""Models for other projects' clients: functions of every kind, whose params are arrays and scalars.

python -m ucall server:server --port 8545
"""

from __future__ import annotations

import asyncio

import numpy
from numpy.typing import NDArray

import ucall

server = ucall.Server(port=0)


@server
def echo(values: numpy.ndarray) -> numpy.ndarray:
    """Returns what it gets."""
    return values


@server
def scale(values: NDArray[numpy.float32], by: float = 2.0) -> NDArray[numpy.float32]:
    return values * numpy.float32(by)


@server
async def add(a: NDArray[numpy.int64], b: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
    await asyncio.sleep(0)
    return a + b


@server(threads=True)
def total(values: NDArray[numpy.float64]) -> float:
    return float(values.sum())


@server.batch(max_size=8)
def embed(values: NDArray[numpy.float32]) -> NDArray[numpy.float32]:
    """One call for all that wait."""
    return values / numpy.linalg.norm(values, axis=-1, keepdims=True)


@server
def upper(texts: list[str]) -> list[str]:
    return [text.upper() for text in texts]


@server
def fail(values: numpy.ndarray) -> numpy.ndarray:
    raise ucall.RPCError(7, "it fails")


server.inference()
