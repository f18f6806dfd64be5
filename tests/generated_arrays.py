"""Arrays that Hypothesis draws: of every dtype, byte order, shape and layout."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy
from hypothesis import strategies as st

CODES = "?bhilqBHILQefdgFDG"
#: Most arrays are small; of the long ones some are longer than what is sent with its head.
SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)
LONG_SHAPES = st.sampled_from([(9001,), (3, 9001)])


def npy(array: numpy.ndarray) -> bytes:
    file = io.BytesIO()
    numpy.save(file, array, allow_pickle=False)
    return file.getvalue()


def filled(dtype: numpy.dtype, shape: tuple[int, ...], seed: int) -> numpy.ndarray:
    """Any items of a dtype: any bytes, also those of NaN, unless some mean nothing."""
    random = numpy.random.default_rng(seed)
    count = int(numpy.prod(shape))
    if dtype.kind == "b" or dtype.char in "gG":
        return random.integers(0, 2, count).astype(dtype).reshape(shape)
    return numpy.frombuffer(random.bytes(count * dtype.itemsize), dtype).reshape(shape)


def strided(array: numpy.ndarray) -> numpy.ndarray:
    """The same items, every second of the last side of a longer array, from its end."""
    if not array.ndim:
        return array
    longer = numpy.repeat(array, 2, axis=-1)
    return longer[..., ::-2][..., ::-1] if array.ndim == 1 else longer[..., ::2]


def read_only(array: numpy.ndarray) -> numpy.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


LAYOUTS: dict[str, Callable[[numpy.ndarray], numpy.ndarray]] = {
    "C": numpy.ascontiguousarray,
    "Fortran": numpy.asfortranarray,
    "transposed": lambda array: array.T,
    "strided": strided,
    "reversed": lambda array: array[::-1] if array.ndim else array,
    "broadcast": lambda array: numpy.broadcast_to(array, (2, *array.shape)),
    "read-only": read_only,
    "unaligned": lambda array: numpy.frombuffer(
        b"\0" + array.tobytes(), array.dtype, offset=1
    ).reshape(array.shape),
}


@st.composite
def arrays(draw: st.DrawFn, codes: str = CODES) -> numpy.ndarray:
    """Arrays of these dtypes, and of every layout."""
    dtype = numpy.dtype(draw(st.sampled_from(codes))).newbyteorder(draw(st.sampled_from("<>")))
    shape = draw(LONG_SHAPES if draw(st.integers(0, 9)) == 0 else SHAPES)
    layout = LAYOUTS[draw(st.sampled_from(list(LAYOUTS)))]
    return layout(filled(dtype, shape, draw(st.integers(0, 99))))
