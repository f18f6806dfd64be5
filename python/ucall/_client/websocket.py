"""The upgrade to WebSocket (RFC 6455) and the frames of a client. It does no I/O."""

from __future__ import annotations

import base64
import hashlib
import os
from typing import Literal

from ucall import _core
from ucall.errors import ConnectionError, HTTPError

__all__ = ["NORMAL_CLOSE", "Upgrade", "control_frame", "message_frame", "upgrade_error"]

#: Appended to the key before it is hashed (RFC 6455, section 1.3).
_KEY_SUFFIX = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
#: The payload of a Close frame with the code 1000.
NORMAL_CLOSE = b"\x03\xe8"


class Upgrade:
    """The request for one upgrade, and the proof that its reply must have."""

    __slots__ = ("accept", "request")

    def __init__(self, head: bytes) -> None:
        key = base64.b64encode(os.urandom(16))
        self.accept = base64.b64encode(
            hashlib.sha1(key + _KEY_SUFFIX, usedforsecurity=False).digest()
        )
        self.request = head + b"Sec-WebSocket-Key: " + key + b"\r\n\r\n"


def message_frame(request: _core.Request) -> bytes:
    """A message of the client: text, or bytes if it has binary parts."""
    return request.websocket_frame(os.urandom(4))


def control_frame(kind: Literal["pong", "close"], payload: bytes) -> bytes:
    """A Pong or a Close frame."""
    return _core.client_frame(kind, payload, os.urandom(4))


def upgrade_error(message: _core.Reply | _core.Notification) -> ConnectionError:
    """The exception for a reply other than an upgrade, before which no call was sent."""
    if isinstance(message, _core.Reply):
        text = message.text.decode(errors="replace")
        error: ConnectionError = HTTPError(message.status, "", text)
    else:
        error = ConnectionError("the server sent a message before its upgrade")
    error.may_have_run = False
    return error
