"""The public interface of queues, and its defaults."""

from __future__ import annotations

import enum
import importlib
import inspect
import io
import pickle
import string
import subprocess
import sys
import uuid
from fractions import Fraction
from typing import Any

import pytest
from pairs import Pairs

import ucall.queue.core
import ucall.queue.utils.stream
from ucall import queue as nq
from ucall.queue.utils.stream import PickleSerializer, Stream

MiB = 1024**2
WAIT_S = 60


def test_names_and_defaults() -> None:
    assert issubclass(nq.Protocol, str) and issubclass(nq.Protocol, enum.Enum)
    assert [*nq.Protocol] == ["tcp", "unix", "shm", "mqtt", "grpc", "nats", "jetstream"]
    assert [*nq.Purpose] == ["server", "client"]
    defaults = {
        name: parameter.default for name, parameter in inspect.signature(nq.new).parameters.items()
    }
    assert list(defaults) == ["protocol", "purpose", "options"]
    assert (defaults["protocol"], defaults["purpose"]) == ("tcp", "client")
    options, other = nq.CommunicatorOptions(), nq.CommunicatorOptions()
    assert isinstance(options.id, uuid.UUID) and options.id != other.id
    assert options.netloc == nq.NetworkLocation("127.0.0.1", 51966)
    assert (options.security, options.workers) == (None, 1)
    connection = options.connection
    assert (connection.get_merge, connection.put_merge) == (True, True)
    assert connection.transport_size == 16 * MiB
    assert connection.queue_size == connection.message_size == 1024 * MiB
    assert (connection.expire_s, connection.handshake_s, connection.handshakes) == (30, 10, 1024)
    assert not connection.trusted
    assert (connection.full, connection.ack) == ("error", "received")


@pytest.mark.parametrize("protocol", list(nq.Protocol))
def test_each_protocol_has_its_classes(protocol: nq.Protocol) -> None:
    for purpose in nq.Purpose:
        module = importlib.import_module(f"ucall.queue.{protocol}.{purpose}")
        kind = module.Communicator
        assert kind.is_server is (purpose == "server")
        if protocol == nq.Protocol.JETSTREAM:
            assert issubclass(kind, nq.StoredQueue)
            continue
        assert issubclass(kind, ucall.queue.core.Communicator)
        parameters = inspect.signature(kind.put).parameters
        assert [str(it) for it in parameters.values()][-3:] == ["data", "*peers", "copy=False"]
    for name in ("Stream", "PickleSerializer", "BytesSerializer"):
        assert getattr(nq, name) is getattr(ucall.queue.utils.stream, name)


@pytest.mark.parametrize("protocol", list(nq.Protocol))
def test_each_class_can_be_imported_by_its_path(protocol: nq.Protocol) -> None:
    """In every form of the statement, and as the first import of a program."""
    program = f"""
import importlib.util
from ucall.queue.{protocol}.server import Communicator as first
import ucall.queue.{protocol}.server as second
import ucall.queue.{protocol}.client
from ucall.queue import {protocol}
print(first is second.Communicator is ucall.queue.{protocol}.server.Communicator)
print({protocol}.client.Communicator is not first, first.__module__)
print(importlib.util.find_spec("ucall.queue.{protocol}.client").name)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr == ""
    path = f"ucall.queue.{protocol}"
    assert done.stdout == f"True\nTrue {path}.server\n{path}.client\n"


def test_new_makes_the_requested_class() -> None:
    with nq.new(options=nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=1))) as client:
        assert type(client) is importlib.import_module("ucall.queue.tcp.client").Communicator
        client._close(True)
    for wrong in (("pigeon", "client"), ("tcp", "judge")):
        with pytest.raises(ValueError, match=r"pigeon|judge"):
            nq.new(*wrong)  # type: ignore[arg-type]


def test_persistent_ids_replace_unsent_objects(pairs: Pairs) -> None:
    here, there = object(), object()
    names = {id(here): "it"}
    sending = PickleSerializer(dump=lambda it: names.get(id(it)))
    taking = PickleSerializer(load=lambda name: {"it": there}[name])
    server = pairs.server(serialization=nq.SerializationOptions(taking.load, taking.dump))
    sender = nq.SerializationOptions(sending.load, sending.dump)
    client = pairs.client(server, serialization=sender)
    client.put([here, b"x" * 100_000, "text"])
    client.put(b"plain")
    received = server.get(timeout=WAIT_S).data
    assert received[0] is there
    assert received[1:] == [b"x" * 100_000, "text"]
    assert server.get(timeout=WAIT_S).data == b"plain"


def test_an_unexpected_persistent_id_is_refused() -> None:
    class Naming(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            return "it" if obj == 7 else None

    data = io.BytesIO()
    Naming(data, 5).dump([7])
    with pytest.raises(pickle.UnpicklingError):
        PickleSerializer().load(Stream([data.getvalue()]))


def test_allowed_names_can_be_combined() -> None:
    def load(data: Any, allow: Any) -> Any:
        return PickleSerializer(allow).load(Stream([pickle.dumps(data, 5)]))

    both = PickleSerializer.allow_by_name("fractions.Fraction", "pathlib")
    assert load(Fraction(1, 2), both) == Fraction(1, 2)
    with pytest.raises(pickle.UnpicklingError):
        load(Fraction, PickleSerializer.allow_by_name("pathlib"))
    assert load(Fraction, lambda name: name == "fractions.Fraction") is Fraction
    assert load(eval, lambda _: True) is eval


def test_bytes_serializer_passes_bytes_through(pairs: Pairs) -> None:
    serializer = nq.BytesSerializer()
    given = {"serialization": nq.SerializationOptions(serializer.load, serializer.dump)}
    server = pairs.server(**given)
    client = pairs.client(server, **given)
    for data in (b"", b"x", bytearray(b"y" * 100_000), memoryview(b"z" * 9_000)):
        client.put(data)
        received = server.get(timeout=WAIT_S).data
        assert (type(received), received) == (bytes, bytes(data))
    with pytest.raises(TypeError):
        client.put("text")
    with pytest.raises(TypeError):
        client.put(7)


def test_options_are_passed_to_other_processes() -> None:
    allow = PickleSerializer.allow_by_name("string.Template")
    serializer = PickleSerializer(allow, max_depth=3)
    serialization = nq.SerializationOptions(serializer.load, serializer.dump)
    for given in (nq.CommunicatorOptions(), nq.CommunicatorOptions(serialization=serialization)):
        options = pickle.loads(pickle.dumps(given))
        assert (options.id, options.connection) == (given.id, given.connection)
    dump, load = options.serialization.dump, options.serialization.load
    assert load(dump(string.Template("x"))).template == "x"
    with pytest.raises(pickle.UnpicklingError, match="deep"):
        load(nq.Stream([pickle.dumps([[[[[[1]]]]]], 5)]))
    with pytest.raises(pickle.PicklingError, match="deep"):
        dump([[[[[[1]]]]]])
    trusting = pickle.loads(pickle.dumps(PickleSerializer(trust=True)))
    assert trusting.load(trusting.dump(len)) is len
