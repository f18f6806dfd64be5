"""NumPy arrays as `.npy` files in memory, and back. Never pickled.

What comes in is believed last: the shape that a header claims is checked against the bytes that
are there before anything is allocated.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

__all__ = ["array_pieces", "check_dtype", "decode_array", "encode_array"]

#: NumPy's letters for bool, integers with and without sign, floats and complex numbers.
_KINDS = "biufc"
_HEADER_BYTES_MAX = 10_000


def encode_array(array: NDArray[Any]) -> memoryview:
    """The bytes of a `.npy` file: dtype, shape, order and all.

    Raises:
        TypeError: The dtype is neither bool nor a number (structured, object, text, dates).
    """
    from numpy.lib import format as npy

    check_dtype(array.dtype)
    out = io.BytesIO()
    npy.write_array(out, array, allow_pickle=False)
    return out.getbuffer()


def array_pieces(array: NDArray[Any]) -> tuple[bytes, NDArray[numpy.uint8]]:
    """The same in two pieces, header and items; the array's own items, where they lie together.

    Raises:
        TypeError: The dtype is neither bool nor a number, or some items are masked out.
    """
    import numpy
    from numpy.lib import format as npy

    check_dtype(array.dtype)
    if isinstance(array, numpy.ma.MaskedArray):
        raise TypeError("a masked array cannot be sent: fill it (array.filled())")
    array = numpy.asarray(array)
    described: Any = npy.header_data_from_array_1_0(array)
    header = io.BytesIO()
    npy.write_array_header_1_0(header, described)
    items = array.T if described["fortran_order"] else numpy.ascontiguousarray(array)
    return header.getvalue(), items.reshape(-1).view(numpy.uint8)


def decode_array(data: bytes | bytearray | memoryview) -> NDArray[Any]:
    """The array of a `.npy` file, which may be written to.

    It lies in ``data`` itself when that is a bytearray.

    Raises:
        ValueError: It is no `.npy`, is pickled, has another dtype than bool or a number, or claims
            another size than it has.
    """
    import numpy

    dtype, shape, is_fortran, start = _header(data)
    count = math.prod(shape)
    have = len(data) - start
    if count * dtype.itemsize != have:
        raise ValueError(
            f"the .npy claims {count} items of {dtype.itemsize} bytes, and has {have} bytes"
        )
    try:
        if count == 0:
            return numpy.empty(shape, dtype, "F" if is_fortran else "C")
        flat = numpy.frombuffer(data, dtype, count, start)
        if not isinstance(data, bytearray):
            flat = flat.copy()
        return flat.reshape(shape, order="F" if is_fortran else "C")
    except (OverflowError, ValueError) as error:
        raise ValueError(f"the .npy has a shape that no array can have: {error}") from None


def check_dtype(dtype: numpy.dtype[Any]) -> None:
    """Lets pass bool and every kind of number.

    Raises:
        TypeError: Any other dtype.
    """
    if dtype.hasobject or dtype.kind not in _KINDS:
        raise TypeError(f"an array of dtype {dtype} cannot be sent: only bool and numbers can")


def _header(data: bytes | bytearray | memoryview) -> tuple[Any, tuple[int, ...], bool, int]:
    """Dtype, shape, whether in Fortran's order, and where the items begin."""
    from numpy.lib import format as npy

    file = io.BytesIO(memoryview(data)[: _HEADER_BYTES_MAX + 64])
    try:
        version = npy.read_magic(file)
        if version == (1, 0):
            read: Any = npy.read_array_header_1_0
        elif version == (2, 0):
            read = npy.read_array_header_2_0
        else:
            raise ValueError(f"version {version[0]}.{version[1]}")
        shape, is_fortran, dtype = read(file, max_header_size=_HEADER_BYTES_MAX)
    except Exception as error:  # NumPy raises what its own parsing happens to raise.
        raise ValueError(f"no .npy that can be read: {error}") from None
    try:
        check_dtype(dtype)
    except TypeError as error:
        raise ValueError(str(error)) from None
    # NumPy takes a bool for an int here, and not as a shape.
    if any(isinstance(side, bool) or side < 0 for side in shape):
        raise ValueError(f"the .npy claims the shape {shape}")
    return dtype, shape, is_fortran, file.tell()
