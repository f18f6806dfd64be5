"""Frames that lie, and arrays in parts that are none."""

from __future__ import annotations

import io

import numpy
from cases import Case
from part_frames import frame

from harness import http, request

GROUP = "Binary parts"
ONE = request("total", [{"$part": 0}])
#: Of a body.
BYTES_MAX = 16 << 20


def npy(array: numpy.ndarray) -> bytes:
    file = io.BytesIO()
    numpy.save(file, array, allow_pickle=True)
    return file.getvalue()


def claiming(shape: str, descr: str = "'<f8'", data: bytes = bytes(8)) -> bytes:
    """A `.npy` whose header says so."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


ARRAY = npy(numpy.arange(3.0))

#: Frames that cannot be read at all.
BROKEN: list[tuple[str, bytes]] = [
    ("another version", frame(ONE, [ARRAY], version=9)),
    ("a text that is longer than the frame", frame(ONE, [ARRAY], text_bytes=1 << 20)),
    ("a text of 4 GiB", frame(ONE, [ARRAY], text_bytes=2**32 - 1)),
    ("a part that is longer than the frame", frame(ONE, [ARRAY], lengths=[len(ARRAY) + 1])),
    ("a part of 2⁶³ bytes", frame(ONE, [ARRAY], lengths=[1 << 63])),
    ("parts that are 2⁶⁴ bytes together", frame(ONE, [ARRAY], lengths=[(1 << 64) - 64, 64])),
    ("bytes behind the last part", frame(ONE, [ARRAY], lengths=[len(ARRAY) - 1])),
    ("65,535 parts, of which none came", frame(ONE, [ARRAY], count=65_535)),
    ("1,025 parts", frame(ONE, [ARRAY, *[b"x"] * 1_024])),
    ("padding that is not 0", frame(ONE, [ARRAY], padding=b"x")),
]

#: Params that cannot be read.
WRONG: list[tuple[str, bytes]] = [
    ("a part that is missing", frame(ONE, [])),
    ("the second of one part", frame(request("total", [{"$part": 1}]), [ARRAY])),
    ("a part that is used twice", frame(request("add", [{"$part": 0}, {"$part": 0}]), [ARRAY])),
    ("the part −1", frame(request("total", [{"$part": -1}]), [ARRAY])),
    ("the part 10³⁰", frame(request("total", [{"$part": 10**30}]), [ARRAY])),
    ("a part with another member", frame(request("total", [{"$part": 0, "x": 1}]), [ARRAY])),
    ("a part for a number", frame(request("add", [{"$part": 0}, 2]), [ARRAY])),
    ("a part that is no array", frame(ONE, [b"text"])),
    ("an empty part", frame(ONE, [b""])),
    ("a pickled array", frame(ONE, [npy(numpy.array([print], dtype=object))])),
    ("an array of objects", frame(ONE, [claiming("(1,)", "'|O'")])),
    ("an array of texts", frame(ONE, [claiming("(1,)", "'<U2'")])),
    ("an array that claims 8 TiB", frame(ONE, [claiming("(1099511627776,)")])),
    ("an array of 2⁶³ items", frame(ONE, [claiming(f"({2**63},)")])),
    ("an array shorter than its shape", frame(ONE, [claiming("(2,)")])),
    ("an array longer than its shape", frame(ONE, [claiming("(1,)", data=bytes(9))])),
    ("a structured array", frame(ONE, [claiming("(1,)", "[('a', '<f8')]")])),
]

#: Calls that are served.
RIGHT: list[tuple[str, bytes]] = [
    ("1,024 parts, of which one is used", frame(ONE, [ARRAY, *[b"x"] * 1_023])),
    ("a part that nobody uses", frame(request("add", [40, 2]), [ARRAY])),
    ("a frame without parts", frame(request("add", [40, 2]), [])),
]


#: Those whose end is not known, after which a connection of raw TCP cannot go on.
ENDLESS = {
    "another version",
    "a text of 4 GiB",
    "a part of 2⁶³ bytes",
    "parts that are 2⁶⁴ bytes together",
    "65,535 parts, of which none came",
    "1,025 parts",
}


def cases() -> list[Case]:
    too_long = frame(ONE, [b""], lengths=[BYTES_MAX])
    return [
        *(Case(GROUP, name, "200 -32600", http(data), behind=True) for name, data in BROKEN),
        *(
            Case(GROUP, f"{name}, raw TCP", "-32600, closed", data, behind=True)
            for name, data in BROKEN
            if name in ENDLESS
        ),
        Case(GROUP, "a part of 16 MiB and its head, raw TCP", "-32600, closed", too_long),
        Case(GROUP, "text that is no JSON", "200 -32700", http(frame(b"{", [ARRAY])), behind=True),
        *(Case(GROUP, name, "200 -32602", http(data), behind=True) for name, data in WRONG),
        *(Case(GROUP, name, "200", http(data), behind=True) for name, data in RIGHT),
    ]
