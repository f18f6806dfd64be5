"""Calls with arrays in every form in which servers take them: what is sent, what must come back.

A message is an HTTP request with its head, or what gRPC and ZeroMQ carry.
"""

import base64
import io
import json
import struct
from dataclasses import dataclass

import numpy

from bench.harness.request import call, post

ALIGNMENT = 64
FRAME_TYPE = "application/vnd.ucall.parts"


@dataclass(frozen=True)
class Message:
    """A request, and bytes that its reply contains."""

    sent: bytes
    within: bytes


def floats(count: int) -> numpy.ndarray:
    """Numbers with the digits of measured values, the same each time."""
    return numpy.random.default_rng(8545).standard_normal(count, numpy.float32)


def npy(array: numpy.ndarray) -> bytes:
    file = io.BytesIO()
    numpy.save(file, array)
    return file.getvalue()


def in_base64(method: str, content: bytes) -> Message:
    text = base64.b64encode(content)
    return Message(post(call(method, text.decode())), text)


def in_parts(method: str, content: bytes) -> Message:
    """A frame with one part, see docs/arrays.md."""
    text = call(method, {"$part": 0})
    head = struct.pack("<BBHIQ", 0xB1, 1, 1, len(text), len(content))
    gap = -(len(head) + len(text)) % ALIGNMENT
    return Message(post(head + text + bytes(gap) + content, FRAME_TYPE), content)


def in_list(method: str, array: numpy.ndarray) -> Message:
    """A list of numbers, whose last one is in the reply."""
    numbers = array.tolist()
    return Message(post(call(method, numbers)), json.dumps(numbers[-1]).encode())


def in_inference(array: numpy.ndarray) -> Message:
    """A request of the Open Inference Protocol with a binary tensor, as `tritonclient` sends it."""
    tensor = {"name": "values", "shape": array.shape, "datatype": "FP32"}
    binary = {"binary_data_size": array.nbytes}
    head = json.dumps(
        {
            "id": "1",
            "inputs": [{**tensor, "parameters": binary}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    lengths = {"Inference_Header_Content_Length": str(len(head))}
    body = head + array.tobytes()
    sent = post(body, "application/octet-stream", "/v2/models/echo/infer", **lengths)
    return Message(sent, array.tobytes())


def raw(array: numpy.ndarray) -> Message:
    """The items alone as a body."""
    return Message(post(array.tobytes(), "application/octet-stream"), array.tobytes())


def in_protobuf(array: numpy.ndarray) -> Message:
    """The same as a message of gRPC: `ModelInferRequest` with `raw_input_contents`."""
    shape = varint(array.size)
    tensor = field(1, b"values") + field(2, b"FP32") + field(3, shape)
    content = array.tobytes()
    sent = field(1, b"echo") + field(3, b"1") + field(5, tensor) + field(7, content)
    return Message(sent, content)


def field(number: int, content: bytes) -> bytes:
    """A field of Protocol Buffers with a length."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
