"""Unidentified peers that send arbitrary bytes on a link, over every protocol."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import ssl
import uuid
from collections.abc import Iterator
from typing import Any

import grpc
import nats
import paho.mqtt.client as paho
from frames import CLIENT_PREAMBLE
from paho.mqtt.enums import CallbackAPIVersion
from pairs import Pairs

from ucall import queue as nq

WAIT_S = 60
#: The header of each piece of a tunnel link: its kind, and its number from 0.
PIECE = b"\0" + bytes(8)


@contextlib.contextmanager
def sent(pairs: Pairs, server: nq.Communicator, data: bytes) -> Iterator[None]:
    """A link whose peer has sent these bytes and stays connected."""
    if pairs.protocol == "mqtt":
        connect_by = _published
    elif pairs.protocol == "nats":
        connect_by = _published_to_nats
    elif pairs.protocol == "grpc":
        connect_by = _streamed
    else:
        connect_by = _connected
    with connect_by(pairs, server, data):
        yield


@contextlib.contextmanager
def _connected(pairs: Pairs, server: nq.Communicator, data: bytes) -> Iterator[None]:
    raw_client = socket.socket(socket.AF_INET if server.address else socket.AF_UNIX)
    raw_client.settimeout(WAIT_S)
    raw_client.connect(server.address or server.options.netloc.host)
    if pairs.authority is not None:
        context = ssl.create_default_context(cafile=pairs.authority.path)
        context.set_alpn_protocols(["ucall-queue"])
        raw_client = context.wrap_socket(raw_client, server_hostname="localhost")
    if pairs.protocol == "shm":
        data = CLIENT_PREAMBLE + data
    with raw_client:
        # The receiver may close before it has read all of it.
        with contextlib.suppress(OSError):
            raw_client.sendall(data)
        yield


@contextlib.contextmanager
def _published(pairs: Pairs, server: nq.Communicator, data: bytes) -> Iterator[None]:
    raw_client = paho.Client(CallbackAPIVersion.VERSION2)
    raw_client.connect("127.0.0.1", server.options.netloc.port)
    raw_client.loop_start()
    topic = f"{server.options.broker.topic}/up/{uuid.uuid4().hex}"
    raw_client.publish(topic, PIECE + data, qos=1).wait_for_publish(WAIT_S)
    yield
    raw_client.disconnect()
    raw_client.loop_stop()


@contextlib.contextmanager
def _published_to_nats(pairs: Pairs, server: nq.Communicator, data: bytes) -> Iterator[None]:
    topic, name = server.options.broker.topic, uuid.uuid4().hex
    with asyncio.Runner() as runner:
        raw_client = runner.run(nats.connect(f"nats://127.0.0.1:{server.options.netloc.port}"))
        runner.run(raw_client.subscribe(f"{topic}.down.{name}"))
        runner.run(raw_client.publish(f"{topic}.up.{name}", PIECE + data))
        runner.run(raw_client.flush())
        yield
        runner.run(raw_client.close())


@contextlib.contextmanager
def _streamed(_pairs: Pairs, server: nq.Communicator, data: bytes) -> Iterator[None]:
    assert server.address is not None
    pieces: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    pieces.put(data)
    with grpc.insecure_channel("{}:{}".format(*server.address)) as channel:
        link: Any = channel.stream_stream("/ucall.Queue/Link")(iter(pieces.get, None))
        yield
        pieces.put(None)
        link.cancel()
