"""The calls and the report of the section `arrays`."""

from __future__ import annotations

import json

import numpy
from part_frames import parse

from bench.harness import arrays
from bench.sections import arrays as section
from bench.suite.array_contenders import FLOOR, SUM


def body_of(message: arrays.Message) -> tuple[bytes, bytes]:
    head, _, body = message.sent.partition(b"\r\n\r\n")
    assert b"Content-Length: %d" % len(body) in head
    return head, body


def test_a_call_in_parts_is_a_frame():
    content = arrays.npy(arrays.floats(64))
    head, body = body_of(arrays.in_parts("echo", content))
    document, parts = parse(body)
    assert document["params"] == [{"$part": 0}] and parts == [content]
    assert arrays.FRAME_TYPE.encode() in head


def test_a_call_of_the_open_inference_protocol_says_where_its_tensor_is():
    values = arrays.floats(64)
    head, body = body_of(arrays.in_inference(values))
    [line] = [it for it in head.split(b"\r\n") if it.startswith(b"Inference-Header-Content-Length")]
    text, tail = body[: int(line.split()[1])], body[int(line.split()[1]) :]
    [tensor] = json.loads(text)["inputs"]
    assert tensor["parameters"]["binary_data_size"] == len(tail)
    assert numpy.array_equal(numpy.frombuffer(tail, "f4"), values)


def test_the_page_has_a_column_for_each_size_and_a_row_for_what_was_measured():
    def runs(**cpu):
        return {name: [{"cpu_us": it, "time_us": 2 * it, "rate": 1}] for name, it in cpu.items()}

    found = {
        "small": runs(**{SUM: 3, "array, parts": 4}),
        "large 16 MiB": runs(**{FLOOR: 5000, "posix, array, parts": 5500}),
    }
    lines = section.by_size(found).splitlines()
    assert lines[0].endswith("| 64 floats | 150 kB | 1 MiB | 16 MiB |")
    assert lines[2:] == [
        "| sum | 3 |  |  |  |",
        "| array, parts | 4 |  |  | 5,500 |",
        f"| {FLOOR} |  |  |  | 5,000 |",
    ]
    verdicts = section.verdicts(found)
    assert "small: array, parts | 1.33" in verdicts and verdicts.endswith("| met |")
