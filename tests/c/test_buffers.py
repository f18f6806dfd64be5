"""Arrays and bytes: as parts behind a request and its reply, and as base64."""

import base64
import io
import json
import struct
from urllib.request import Request, urlopen

import numpy
import pytest

import harness
from harness import FrameClient, serving

PROGRAM = harness.PROGRAMS / "buffers.c"
DTYPES = {"?": 1, "b": 2, "h": 3, "i": 4, "l": 5, "B": 6, "H": 7, "I": 8, "L": 9}
DTYPES |= {"e": 10, "f": 11, "d": 12, "F": 14, "D": 15}
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603


@pytest.fixture
def client(built, engine):
    with serving([built(PROGRAM), engine]) as server, FrameClient(server.port) as client:
        yield client


def npy(array) -> bytes:
    file = io.BytesIO()
    numpy.save(file, array)
    return file.getvalue()


def load(data: bytes):
    return numpy.load(io.BytesIO(data))


def text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


ARRAYS = [
    array
    for code in DTYPES
    for items in [(numpy.arange(24) % 2 if code == "?" else numpy.arange(24)).astype(code)]
    for array in (
        items,
        items[0],
        items[:0].reshape(2, 0),
        items.reshape(4, 6).T,
        items.reshape(2, 3, 4).transpose(2, 1, 0),
        items.astype(items.dtype.newbyteorder()),
    )
]


def test_arrays_of_every_dtype_and_order(client):
    for array in ARRAYS:
        data = npy(array)
        shape = list(array.shape)
        described = [DTYPES[array.dtype.char], shape, array.nbytes, True]
        value = {"$part": 0}
        assert client.call_parts("describe", {"value": value}, data)[0]["result"] == described
        assert client.call("describe", {"value": text_of(data)}) == described
        for method in ("echo", "later"):
            for params in ({"value": value}, [value]):
                reply, (part,) = client.call_parts(method, params, data)
                assert reply["result"] == {"$part": 0}
                again = load(part)
                assert again.dtype == array.dtype.newbyteorder("=")
                assert numpy.array_equal(again, array) and again.flags.c_contiguous
            # To a caller that takes no parts they are base64, byte for byte the same.
            assert client.call(method, {"value": text_of(data)}) == text_of(part)


def test_bytes(client):
    for data in (b"", b"x", b"\x93NUMPX", bytes(1000)):
        for method in ("echo", "later"):
            reply, parts = client.call_parts(method, [{"$part": 1}], b"other", data)
            assert (reply["result"], parts) == ({"$part": 0}, [data])
            assert client.call(method, [text_of(data)]) == text_of(data)
        described = [0, [], len(data), True]
        assert client.call("describe", {"value": text_of(data)})[:3] == described[:3]
    assert client.call("empty") == ""
    reply, parts = client.call_parts("empty", {})
    assert (reply["result"], parts) == ({"$part": 0}, [b""])
    nested = {"list": [1, {"$part": 0}]}
    assert client.call_parts("echo", nested, b"x")[1] == [b"x"]
    assert client.call("later", {"list": [1, "eA=="]}) == "eA=="
    # A slash may be escaped in JSON.
    assert client.call("echo", text=r'["\/w=="]') == "/w=="


def test_other_getters_see_base64(client):
    data = bytes(range(256))
    text = text_of(data)
    for value, seen in [({"$part": 0}, text), ([1, {"$part": 0}], [1, text])]:
        reply, parts = client.call_parts("text", {"value": value, "other": 5}, data)
        found = [5, text, text] if seen == text else [6, seen]
        assert (reply["result"], parts) == ([*found, {"value": seen, "other": 5}], [])
        assert client.call("text", {"value": seen}) == [*found, {"value": seen}]
    later = client.call_parts("text_later", {"value": {"$part": 0}}, data)[0]
    assert later["result"] == [5, text, text, {"value": text}]
    # A caller's own object is that, without a frame and within one that lacks the part.
    own = {"$part": 0}
    assert client.call("text", {"value": own}) == [7, own, {"value": own}]
    assert client.call_parts("text", {"value": own})[0]["result"] == [7, own, {"value": own}]
    assert client.call_parts("sum", {"a": 1, "b": 2}, data)[0]["result"] == 3


def test_each_call_of_a_batch_reads_its_own_params(client):
    calls = [
        {"jsonrpc": "2.0", "id": at, "method": "text", "params": {"value": {"$part": at}}}
        for at in range(5)
    ]
    text = json.dumps(calls)
    frame = struct.pack("<BBHI5Q", 0xB1, 1, 5, len(text), *[1] * 5) + text.encode()
    for at in range(5):
        frame += bytes(-len(frame) % 64) + b"%d" % at
    client.send(frame)
    replies = json.loads(client.line())
    assert [it["result"][1] for it in replies] == [text_of(b"%d" % at) for at in range(5)]


def test_a_notification_leaves_no_parts(client):
    text = json.dumps({"jsonrpc": "2.0", "method": "echo", "params": [{"$part": 0}]}).encode()
    head = struct.pack("<BBHIQ", 0xB1, 1, 1, len(text), 6) + text
    client.send(head + bytes(-len(head) % 64) + b"secret")
    reply, parts = client.call_parts("sum", {"a": 1, "b": 1})
    assert (reply["result"], parts) == (2, [])


def test_a_stream_ends_with_base64(client):
    params = {"value": {"$part": 0}}
    request = {"jsonrpc": "2.0", "method": "stream", "params": params, "id": 1}
    text = json.dumps({**request, "_meta": {"progressToken": 1}}).encode()
    head = struct.pack("<BBHIQ", 0xB1, 1, 1, len(text), 3) + text
    client.send(head + bytes(-len(head) % 64) + b"abc")
    assert client.message()["method"] == "$/progress"
    reply, parts = client.receive_parts()
    assert (reply["result"], parts) == (text_of(b"abc"), [])


def test_whole_bodies(client):
    """As files, and as items whose dtype and shape are headers."""
    array = numpy.arange(6, dtype="i2").reshape(2, 3)
    npy_type, octets = "application/x-npy", "application/octet-stream"
    shaped = {"Ucall-Dtype": "int16", "Ucall-Shape": "2,3"}
    for method in ("echo", "later"):
        for body, kind, headers, accept, expected in [
            (npy(array), npy_type, {}, npy_type, npy(array)),
            (array.tobytes(), octets, shaped, npy_type, npy(array)),
            (array.tobytes(), octets, shaped, octets, array.tobytes()),
            (npy(array), npy_type, {}, "application/json", b"[[0,1,2],[3,4,5]]"),
            (b"abc", octets, {}, octets, b"abc"),
        ]:
            url = f"http://127.0.0.1:{client.socket.getpeername()[1]}/{method}"
            headers = {"Content-Type": kind, "Accept": accept, **headers}
            with urlopen(Request(url, body, headers), timeout=60) as reply:
                assert reply.read() == expected


def test_hostile_params(client):
    whole = npy(numpy.arange(3.0))
    hostile = [whole[:length] for length in range(6, len(whole))] + [whole + b"\0"]
    for claim in ("(-1,)", "(4,)", "(3, 9223372036854775807)", "(0, 9223372036854775807, 9)", "3"):
        at = whole.index(b"(3,)")
        hostile.append(whole[:at] + claim.encode() + whole[at + 4 + len(claim) - 4 :])
    hostile += [npy(numpy.zeros(2, "g")), npy(numpy.zeros(2, "U3")), npy(numpy.zeros(2, "i4,i4"))]
    for data in hostile:
        error = client.call_parts("echo", [{"$part": 0}], data)[0]["error"]
        assert error["code"] == INVALID_PARAMS, data
        assert client.error_of("echo", [text_of(data)])["code"] == INVALID_PARAMS
    others = ["*", "AA", "AA==\n", "AB==", " AA==", "\u00e9", 3, None, True, [], {}, ["AA=="]]
    others += [{"$part": 0, "a": 1}, {"$part": "0"}, {"$part": -1}, {"$part": 0.0}]
    for value in others:
        assert client.error_of("echo", [value])["code"] == INVALID_PARAMS
        assert client.call_parts("echo", [value], b"x")[0]["error"]["code"] == INVALID_PARAMS
    missing = client.call_parts("echo", [{"$part": 1}], b"x")[0]
    assert missing["error"]["code"] == INVALID_PARAMS
    assert client.call("sum", {"a": 1, "b": 2}) == 3


def test_replies_that_are_rejected(client):
    reasons = ["has no data", "is longer than half of SIZE_MAX", *["has an unknown dtype"] * 2]
    reasons += ["has no shape", *["has too many dimensions"] * 2]
    reasons += [*["has another length than its shape"] * 5, "has a shape, but no dtype", "is NULL"]
    for how, reason in enumerate(reasons):
        message = f"The handler replied with a buffer that {reason}"
        assert client.error_of("wrong", [how]) == {"code": INTERNAL_ERROR, "message": message}
        reply, parts = client.call_parts("wrong", [how])
        assert (reply["error"]["message"], parts) == (message, [])
