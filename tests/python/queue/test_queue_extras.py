"""Optional libraries: features that need them say so, and others work without them."""

from __future__ import annotations

from harness import program

WITHOUT = """
import sys
for name in sys.argv[1].split():
    # As if it were not installed.
    sys.modules[name] = None
from ucall import queue as nq
"""
NEEDS_GRPC = """
import threading, time
kept = []
for purpose in nq.Purpose:
    try:
        nq.new(nq.Protocol.GRPC, purpose)
    except ImportError as error:
        print(error)
        # With all that it leads to, until the program ends.
        kept.append(error)
# What was begun ends by itself: that of the log takes a moment.
while len(threading.enumerate()) > 1:
    time.sleep(0.01)
print("no thread stays")
"""
EVERYTHING_ELSE = """
here = nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0))
with nq.new("tcp", "server", here) as server:
    there = nq.CommunicatorOptions(netloc=nq.NetworkLocation(*server.address))
    with nq.new("tcp", "client", there) as client:
        for data in ([1, "two", {3: None}], b"x" * 100_000, bytearray(b"ab")):
            client.put(data).result(60)
            print(server.get(timeout=60).data == data)
"""


def run(source: str, without: str) -> str:
    with program(WITHOUT + source, without) as process:
        output, errors = process.communicate(timeout=60)
    assert errors == ""
    return str(output)


def test_a_missing_grpc_names_its_package() -> None:
    told = "a queue over grpc needs grpcio: pip install grpcio\n"
    assert run(NEEDS_GRPC, "grpc") == told * 2 + "no thread stays\n"


NEEDS_NATS = """
for protocol in (nq.Protocol.NATS, nq.Protocol.JETSTREAM):
    try:
        nq.new(protocol, nq.Purpose.CLIENT)
    except ImportError as error:
        print(error)
"""


def test_a_missing_nats_names_its_package() -> None:
    assert run(NEEDS_NATS, "nats") == "NATS needs nats-py: pip install 'nats-py[nkeys]'\n" * 2


def test_other_queues_work_without_extras() -> None:
    others = "grpc nats numpy msgspec PIL pydantic paho"
    assert run(EVERYTHING_ELSE, others) == "True\n" * 3
