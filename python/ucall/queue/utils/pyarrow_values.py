"""Arrow's tables and record batches as IPC streams, which a receiver checks before it uses them."""

from __future__ import annotations

import importlib
import pickle
import struct
from typing import Any

# Its types are not checked: it is not installed where they are.
pa: Any = importlib.import_module("pyarrow")

__all__ = ["batch", "reducers", "table"]

# Kinds of messages, and fields of their headers, by Arrow's Message.fbs.
_SCHEMA, _DICTIONARY_BATCH = 1, 2
_HEADER_TYPE, _HEADER, _ENDIANNESS, _BATCH_OF_DICTIONARY, _COMPRESSION = 1, 2, 0, 1, 3


def reducers() -> dict[type, Any]:
    """The functions that `pickle` calls for these types."""
    if int(pa.__version__.partition(".")[0]) < 15:
        # Older ones unpickle extension types.
        raise ImportError("allow_arrow needs pyarrow 15 or later: pip install -U pyarrow")
    return {pa.Table: _reduced_table, pa.RecordBatch: _reduced_batch}


def _reduced_table(data: Any) -> Any:
    return table, (_stream(data),)


def _reduced_batch(data: Any) -> Any:
    return batch, (_stream(data),)


def _stream(data: Any) -> pickle.PickleBuffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema) as writer:
        writer.write(data)
    return pickle.PickleBuffer(sink.getvalue())


def table(stream: Any) -> Any:
    """The table of a stream that a sender chooses."""
    schema, batches = _batches(stream)
    return pa.Table.from_batches(batches, schema)


def batch(stream: Any) -> Any:
    """The record batch of a stream that a sender chooses."""
    (made,) = _batches(stream)[1]
    return made


def _batches(stream: Any) -> tuple[Any, list[Any]]:
    """They use the memory of the stream: a message may have the same one many times."""
    data = pa.py_buffer(stream)
    for message in pa.ipc.MessageReader.open_stream(data):
        if _is_converted(bytes(message.metadata)):
            raise ValueError("a batch is compressed, or has another byte order")
    with pa.ipc.open_stream(data) as reader:
        batches = list(reader)
    for made in batches:
        made.validate(full=True)
    return reader.schema, batches


def _is_converted(metadata: bytes) -> bool:
    """Whether Arrow would make other memory of what a message describes."""
    root = struct.unpack_from("<I", metadata)[0]
    kind_at, header = _field(metadata, root, _HEADER_TYPE), _table(metadata, root, _HEADER)
    kind = metadata[kind_at] if kind_at else 0
    if kind == _SCHEMA:
        return bool(_field(metadata, header, _ENDIANNESS))
    if kind == _DICTIONARY_BATCH:
        header = _table(metadata, header, _BATCH_OF_DICTIONARY)
    return bool(_field(metadata, header, _COMPRESSION))


def _field(data: bytes, at: int, number: int) -> int:
    """Where a field of a FlatBuffers table is; 0 if it is absent."""
    names = at - struct.unpack_from("<i", data, at)[0]
    (length,) = struct.unpack_from("<H", data, names)
    place = 4 + 2 * number
    offset = struct.unpack_from("<H", data, names + place)[0] if place < length else 0
    return at + offset if offset else 0


def _table(data: bytes, at: int, number: int) -> int:
    """Where the table is that a field refers to; 0 if it is absent."""
    found = _field(data, at, number)
    return found + struct.unpack_from("<I", data, found)[0] if found else 0


batch.__ucall_complete__ = table.__ucall_complete__ = True  # type: ignore[attr-defined]
