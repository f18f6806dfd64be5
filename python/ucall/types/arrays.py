"""Encodes NumPy arrays as `.npy` files in memory, and decodes them. Never pickled.

The shape in a received header is checked against the number of received bytes before memory is
allocated. The core does all of it, without NumPy's Python code.
"""

from __future__ import annotations

from ucall._core import ArrayType, decode_array, encode_array

__all__ = ["ArrayType", "decode_array", "encode_array"]
