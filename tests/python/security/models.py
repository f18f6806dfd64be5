"""Requests of the Open Inference Protocol and whole bodies that lie."""

from __future__ import annotations

import json
from typing import Any

from binary import ARRAY, claiming
from cases import Case

from harness import http

GROUP = "Arrays by HTTP"
INFER = "/v2/models/total/infer"
EIGHT = bytes(8)


def tensor(**other: Any) -> dict[str, Any]:
    """The one input of `total`, in binary."""
    binary = {"binary_data_size": 8}
    return {"name": "array", "shape": [1], "datatype": "FP64", "parameters": binary} | other


def infer(*inputs: dict[str, Any], tail: bytes = EIGHT, length: str | None = None) -> bytes:
    head = json.dumps({"inputs": inputs}).encode()
    header = f"Inference-Header-Content-Length: {len(head) if length is None else length}"
    return http(head + tail, header, target=INFER)


def sized(size: Any) -> dict[str, Any]:
    return tensor(parameters={"binary_data_size": size})


def in_json(**other: Any) -> dict[str, Any]:
    return {"name": "array", "shape": [1], "datatype": "FP64", "data": [1.0]} | other


def safetensors(length: int, header: bytes, tail: bytes = b"") -> bytes:
    body = length.to_bytes(8, "little") + header + tail
    return http(body, "Content-Type: application/safetensors", target="/total")


def described(**tensors: Any) -> bytes:
    header = json.dumps(tensors).encode()
    return safetensors(len(header), header, EIGHT)


def item(begin: int = 0, end: int = 8, **other: Any) -> dict[str, Any]:
    return {"dtype": "F64", "shape": [1], "data_offsets": [begin, end]} | other


def raw(shape: str, dtype: str = "float64", body: bytes = EIGHT) -> bytes:
    headers = ["Content-Type: application/octet-stream", f"Ucall-Shape: {shape}"]
    return http(body, *headers, f"Ucall-Dtype: {dtype}", target="/total")


def file(content: bytes, kind: str = "application/x-npy") -> bytes:
    return http(content, f"Content-Type: {kind}", target="/total")


WRONG: list[tuple[str, str, bytes]] = [
    ("a JSON head longer than the body", "400", infer(tensor(), length="1000000")),
    ("a JSON head of −1 bytes", "400", infer(tensor(), length="-1")),
    ("a JSON head of 2⁶⁴ bytes", "400", infer(tensor(), length=str(2**64))),
    ("a tensor longer than the body", "400", infer(sized(16))),
    ("a tensor of 2⁶³ bytes", "400", infer(sized(2**63))),
    ("a tensor of −1 bytes", "400", infer(sized(-1))),
    ("a tensor of 10³⁰ bytes", "400", infer(sized(10**30))),
    ("two tensors of the same bytes", "400", infer(tensor(), tensor())),
    ("bytes behind the last tensor", "400", infer(tensor(), tail=bytes(16))),
    ("a shape of more items than bytes", "400", infer(tensor(shape=[2]))),
    ("a shape of 2⁶⁴ items", "400", infer(tensor(shape=[1 << 62, 4]))),
    ("a shape of −1", "400", infer(tensor(shape=[-1]))),
    ("an unknown datatype", "400", infer(tensor(datatype="OBJECT"))),
    (
        "a text that claims 4 GiB",
        "400",
        infer(tensor(datatype="BYTES"), tail=b"\xff\xff\xff\xff text"),
    ),
    ("data and bytes", "400", infer(tensor(data=[1.0]))),
    ("data of another shape", "400", infer(in_json(shape=[2]), tail=b"")),
    (
        "data that is nested 100 times",
        "400",
        infer(in_json(data=json.loads("[" * 100 + "]" * 100))),
    ),
    ("an input that the model does not have", "400", infer(tensor(name="x"))),
    ("no input", "400", infer(tail=b"")),
    (
        "a safetensors header of 100 MB in 30 bytes",
        "400 -32600",
        safetensors(100_000_000, b"{}" * 11),
    ),
    ("a safetensors header of 2⁶³ bytes", "400 -32600", safetensors(1 << 63, b"{}")),
    ("a safetensors header that is no JSON", "400 -32600", safetensors(9, b"{" * 9)),
    ("a safetensors array behind the end", "400 -32600", described(array=item(0, 16, shape=[2]))),
    (
        "a safetensors array from 2⁶³ on",
        "400 -32600",
        described(array=item(1 << 63, (1 << 63) + 8)),
    ),
    ("a safetensors array that ends before it begins", "400 -32600", described(array=item(8, 0))),
    ("safetensors arrays that overlap", "400 -32600", described(array=item(), other=item())),
    ("a safetensors array of 2⁶⁴ items", "400 -32600", described(array=item(shape=[1 << 62, 4]))),
    ("an unknown dtype of safetensors", "400 -32600", described(array=item(dtype="O"))),
    ("items of a shape of 2⁶³", "400 -32600", raw(str(1 << 63))),
    ("items of 2⁶⁴ in all", "400 -32600", raw(f"{1 << 62},4")),
    ("more items than bytes", "400 -32600", raw("2")),
    ("items that are objects", "400 -32600", raw("1", "object")),
    ("a .npy that claims 8 TiB", "422 -32602", file(claiming("(1099511627776,)"))),
    ("a .npy of objects", "422 -32602", file(claiming("(1,)", "'|O'"))),
    ("a .npy that is cut off", "422 -32602", file(ARRAY[:20])),
    ("an image for an array", "422 -32602", file(b"\x89PNG\r\n\x1a\n", "image/png")),
    ("a form without its boundary", "400 -32600", file(b"x", "multipart/form-data")),
    (
        "a form that does not end",
        "400 -32600",
        file(b"--x\r\n\r\nx", "multipart/form-data; boundary=x"),
    ),
]


RIGHT: list[tuple[str, bytes]] = [
    ("a tensor", infer(tensor())),
    ("data in JSON", infer(in_json(), tail=b"")),
    ("a safetensors array", described(array=item())),
    ("items with dtype and shape", raw("1")),
    ("a .npy", file(ARRAY)),
]


def cases() -> list[Case]:
    how = {"group": GROUP, "behind": True, "server": "models"}
    return [
        *(Case(name=name, expected=reply, sent=data, **how) for name, reply, data in WRONG),
        *(Case(name=name, expected="200", sent=data, **how) for name, data in RIGHT),
    ]
