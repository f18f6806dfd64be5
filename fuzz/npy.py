"""Reads `.npy` files as arrays, and compares the result with NumPy's.

    python fuzz/npy.py CORPUS... [-max_total_time=60]     # under atheris, guided by coverage

`tests/python/test_types_npy.py` runs the same over the stored inputs and mutations of them.
"""

from __future__ import annotations

import ast
import io
import sys
import types
import warnings

import numpy

from ucall.types import arrays

#: NumPy's own limit, which makes it refuse what we do.
HEADER_BYTES_MAX = 10_000


def run(data: bytes) -> None:
    """Reads bytes as an array: it must equal NumPy's, or be refused with a ValueError.

    NumPy must read the same array of accepted bytes. Refused bytes, unless the reason is their size
    or dtype, must be none that NumPy would write. An accepted array must be written as bytes that
    read as the same array.

    Raises:
        AssertionError: A promise is broken.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            array = arrays.decode_array(data)
        except ValueError as refused:
            # NumPy would allocate the size that a shape claims.
            if str(refused).startswith("no .npy") and data[6:8] != b"\3\0":
                array = _by_numpy(data)
                assert array is None or _written(array) != data, f"refused: {refused}"
            return
        expected = _by_numpy(data)
    assert expected is not None, "taken for an array"
    assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
    assert array.tobytes() == expected.tobytes()
    assert array.flags.writeable and not array.dtype.hasobject
    again = arrays.encode_array(array)
    assert again == _written(array)
    decoded = arrays.decode_array(again)
    assert (decoded.dtype, decoded.shape) == (array.dtype, array.shape)
    assert decoded.tobytes() == array.tobytes()


def _written(array: numpy.ndarray) -> bytes:
    file = io.BytesIO()
    numpy.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def _by_numpy(data: bytes) -> numpy.ndarray | None:
    try:
        return numpy.lib.format.read_array(
            io.BytesIO(data), allow_pickle=False, max_header_size=HEADER_BYTES_MAX
        )
    except Exception:  # Whatever its parsing happens to raise.
        return None


def with_its_length(data: bytearray) -> None:
    """Sets the length in a header of version 1, so that its contents are read."""
    end = data.find(b"\n")
    if data.startswith(b"\x93NUMPY\1\0") and 10 < end < 1 << 16:
        data[8:10] = (end + 1 - 10).to_bytes(2, "little")


def main() -> None:
    import atheris

    def mutate(data: bytes, bytes_max: int, seed: int) -> bytes:
        mutated = bytearray(atheris.Mutate(data, len(data)))
        if seed % 8:
            with_its_length(mutated)
        return bytes(mutated[:bytes_max])

    reading = sys.modules[numpy.lib.format.read_array.__module__]
    for function in (*vars(arrays).values(), *vars(reading).values(), ast.literal_eval):
        if isinstance(function, types.FunctionType):
            atheris.instrument_func(function)
    atheris.Setup(sys.argv, run, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
