"""Encodes NumPy arrays as `.npy` files in memory, and decodes them. Never pickled.

The shape in a received header is checked against the number of received bytes before memory is
allocated.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

__all__ = ["array_pieces", "check_dtype", "decode_array"]

#: NumPy's letters for bool, integers with and without sign, floats and complex numbers.
_KINDS = "biufc"
_HEADER_BYTES_MAX = 10_000


def array_pieces(array: NDArray[Any]) -> tuple[bytes, NDArray[numpy.uint8]]:
    """The header and the items of a `.npy` file. Contiguous items are not copied.

    Raises:
        TypeError: The dtype is neither bool nor a number (structured, object, text, dates), or the
            array is masked.
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
    """The array of a `.npy` file. It is writable, and uses the memory of ``data`` if that is a
    bytearray.

    Raises:
        ValueError: The data is not a `.npy`, is pickled, has another dtype than bool or a number,
            or its length does not match its shape.
    """
    import numpy

    dtype, shape, is_fortran, start = _header(data)
    count = math.prod(shape)
    have = len(data) - start
    if count * dtype.itemsize != have:
        raise ValueError(
            f"the .npy claims {count} items of {dtype.itemsize} bytes, but has {have} bytes"
        )
    try:
        if count == 0:
            return numpy.empty(shape, dtype, "F" if is_fortran else "C")
        flat = numpy.frombuffer(data, dtype, count, start)
        if not isinstance(data, bytearray):
            flat = flat.copy()
        return flat.reshape(shape, order="F" if is_fortran else "C")
    except (OverflowError, ValueError) as error:
        raise ValueError(f"the .npy has an invalid shape: {error}") from None


def check_dtype(dtype: numpy.dtype[Any]) -> None:
    """Refuses dtypes other than bool and numbers.

    Raises:
        TypeError: The message names the dtype.
    """
    if dtype.hasobject or dtype.kind not in _KINDS:
        raise TypeError(f"an array of dtype {dtype} cannot be sent: only bool and numbers can")


def _header(data: bytes | bytearray | memoryview) -> tuple[Any, tuple[int, ...], bool, int]:
    """Dtype, shape, whether in Fortran order, and the offset of the items."""
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
    except Exception as error:  # NumPy documents no set of exceptions.
        raise ValueError(f"no .npy that can be read: {error}") from None
    try:
        check_dtype(dtype)
    except TypeError as error:
        raise ValueError(str(error)) from None
    # NumPy accepts a bool here, but not in the shape of an array.
    if any(isinstance(side, bool) or side < 0 for side in shape):
        raise ValueError(f"the .npy claims the shape {shape}")
    return dtype, shape, is_fortran, file.tell()
