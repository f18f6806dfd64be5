"""Values of the types that the default loader makes, and the pickles of them beside this file.

    python tests/python/queue/pickles/written.py

writes `cpython-VERSION-numpy-VERSION.pickle` with the CPython and the NumPy that run it.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import ipaddress
import pathlib
import pickle
import platform
import uuid
import zoneinfo
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent


def values() -> list[Any]:
    """The values, the same in each version."""
    return [
        [None, True, -1, 1 << 80, 1.5, 1 + 2j, "é\ud800", b"bytes", bytearray(b"changes")],
        [(1, 2), (1, 2, 3, 4), {1, "a"}, frozenset({2.5}), {"key": ["value"]}],
        [
            range(1, 9, 2),
            slice(1, None, 2),
            collections.OrderedDict(a=1),
            collections.deque([1], 5),
        ],
        [collections.Counter("aab")],
        [decimal.Decimal("1.50"), fractions.Fraction(7, 3), uuid.UUID(int=5)],
        [datetime.date(2024, 2, 29), datetime.time(1, 2, fold=1), datetime.timedelta(1, 2, 3)],
        [datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)],
        [datetime.datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Helsinki"))],
        [ipaddress.ip_address("::1"), ipaddress.ip_network("10.0.0.0/8")],
        [ipaddress.ip_interface("192.0.2.1/24")],
        [pathlib.PurePosixPath("/usr/lib"), pathlib.PureWindowsPath("c:/x"), pathlib.Path("a/b")],
        [ValueError("x", 1), KeyError("y"), OSError(2, "no", "file"), UnicodeError()],
        [np.arange(6.0).reshape(2, 3), np.arange(6, dtype=">i2").T, np.array(["a", "bc"])],
        [np.asfortranarray(np.arange(6).reshape(2, 3)), np.zeros(2, "i4,f8"), np.zeros((), "V3")],
        [np.float32(1.5), np.int64(-1), np.str_("text"), np.bytes_(b"raw"), np.bool_(True)],
        [np.datetime64("2024-01-01", "us"), np.timedelta64(5, "s"), np.complex64(1j)],
    ]


def main() -> None:
    python = ".".join(platform.python_version_tuple()[:2])
    numpy = ".".join(np.__version__.split(".")[:2])
    path = FOLDER / f"cpython-{python}-numpy-{numpy}.pickle"
    path.write_bytes(pickle.dumps(values(), 5))
    print(path.name)


if __name__ == "__main__":
    main()
