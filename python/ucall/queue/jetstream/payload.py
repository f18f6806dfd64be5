"""Messages of JetStream: an object as the payload and headers of a message of NATS.

The payload is what ``dump`` returns. Out-of-band buffers follow it, and a header has the length of
each part. Without that header the payload is one part, so that any client of NATS can put.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from ucall._core import bytes_view
from ucall.queue.utils.stream import Stream

__all__ = ["PEER", "REPEATED", "dumped", "loaded", "sender_of"]

#: The id of the communicator that put the message.
PEER = "Ucall-Peer"
#: The message was sent before, and may have been stored then.
REPEATED = "Ucall-Repeated"
_PARTS = "Ucall-Parts"
#: The sender of a message that another client of NATS has put.
_UNKNOWN = uuid.UUID(int=0)


def dumped(dump: Callable[[Any], Any], data: Any) -> tuple[bytes, dict[str, str]]:
    """The payload and headers for an object."""
    result = dump(data)
    if isinstance(result, bytes | bytearray | memoryview):
        result = [result]
    stream = result if isinstance(result, Stream) else Stream(result)
    first = b"".join(stream.chunks)
    if not stream.buffers:
        return first, {}
    views = [bytes_view(buffer) for buffer in stream.buffers]
    lengths = ",".join(str(len(part)) for part in (first, *views))
    return b"".join([first, *views]), {_PARTS: lengths}


def loaded(load: Callable[[Stream], Any], payload: bytes, headers: Mapping[str, str]) -> Any:
    """The object of a message.

    Raises:
        ValueError: The lengths of its parts are wrong.
    """
    lengths = headers.get(_PARTS)
    if lengths is None:
        return load(Stream([memoryview(payload)]))
    # A copy, because arrays of other transports are writable, too.
    rest, parts = memoryview(bytearray(payload)), []
    for length in map(int, lengths.split(",")):
        if not 0 <= length <= len(rest):
            raise ValueError("refused: the parts of the message are longer than the message")
        parts.append(rest[:length])
        rest = rest[length:]
    if rest:
        raise ValueError("refused: the message is longer than its parts")
    return load(Stream(parts[:1], parts[1:]))


def sender_of(headers: Mapping[str, str]) -> uuid.UUID:
    """The id of the communicator that put a message."""
    return _parsed(headers.get(PEER, ""))


@functools.lru_cache(1024)
def _parsed(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        return _UNKNOWN
