"""Peers that read frames, JSON texts with binary parts behind them, and peers that do not."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from typing import Any

import numpy
import part_frames
from scripted import Peer, Script, http_reply, result
from websocket_peer import CLOSE, TEXT, frame, read_frame, upgrade

BINARY = 0x2
PARTS_TYPE = "Content-Type: application/vnd.ucall.parts"


def pack(document: Any, *parts: bytes) -> bytes:
    """A frame with these parts."""
    return part_frames.frame(document, list(parts))


def npy(array: Any) -> bytes:
    """The `.npy` of an array."""
    file = io.BytesIO()
    numpy.save(file, array, allow_pickle=False)
    return file.getvalue()


class Transport:
    """How a peer reads requests, and writes replies.

    Args:
        scheme: That of a client's address.
    """

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme

    def begin(self, peer: Peer) -> None:
        if self.scheme == "ws":
            upgrade(peer)

    def request(self, peer: Peer) -> bytes:
        """The bytes of the next request; raises EOFError at the end."""
        if self.scheme == "http":
            return peer.http_request()
        if self.scheme == "ws":
            opcode, payload = read_frame(peer)
            if opcode == CLOSE:
                raise EOFError
            assert opcode == (BINARY if payload[:1] == b"\xb1" else TEXT)
            return payload
        first = peer.take(1)
        if first != b"\xb1":
            return first + peer.raw_request()
        head = first + peer.take(7)
        count, length = struct.unpack_from("<HI", head, 2)
        head += peer.take(8 * count)
        sizes = struct.unpack_from(f"<{count}Q", head, 8)
        end = len(head) + length
        for size in sizes:
            end += -end % 64 + size
        return head + peer.take(end - len(head))

    def reply(self, data: bytes) -> bytes:
        """A whole reply."""
        if self.scheme == "http":
            return http_reply(data, *([PARTS_TYPE] if data[:1] == b"\xb1" else []))
        if self.scheme == "ws":
            return frame(data, BINARY if data[:1] == b"\xb1" else TEXT)
        return data if data[:1] == b"\xb1" else data + b"\n"


Handle = Callable[[Any, list[bytes], bool], bytes]


class Server:
    """A peer's script, and the requests that it has read.

    Args:
        handle: Gets the document, the parts, and whether it was a frame; returns the reply's bytes.
            The probe of a client gets "Method not found".
        refuse: Answers a frame, if the server does not know them: bytes as they are, or nothing to
            close.
    """

    def __init__(self, scheme: str, handle: Handle, refuse: bytes | None = None) -> None:
        self.transport = Transport(scheme)
        self._handle = handle
        self._refuse = refuse
        #: The documents of calls, the number of frames that were refused, and of probes.
        self.calls: list[Any] = []
        self.frames: list[bool] = []
        self.refused = 0
        self.probes = 0

    def script(self) -> Script:
        def script(peer: Peer) -> None:
            self.transport.begin(peer)
            while self._answer(peer):
                pass

        return script

    def _answer(self, peer: Peer) -> bool:
        data = self.transport.request(peer)
        is_frame = data[:1] == b"\xb1"
        if is_frame and self._refuse is not None:
            self.refused += 1
            if self._refuse:
                peer.send(self._refuse)
            return False
        document, parts = part_frames.parse(data)
        if isinstance(document, dict) and document.get("method") == "$/probe":
            self.probes += 1
            error = {"code": -32601, "message": "Method not found"}
            text = json.dumps({"jsonrpc": "2.0", "id": document["id"], "error": error}).encode()
            peer.send(self.transport.reply(text))
            return True
        if isinstance(document, dict) and document.get("method") == "$/cancelRequest":
            return True
        self.calls.append(document)
        self.frames.append(is_frame)
        reply = self._handle(document, parts, is_frame)
        if reply or self.transport.scheme == "http":
            peer.send(self.transport.reply(reply))
        return True


def echo(document: Any, parts: list[bytes], is_frame: bool) -> bytes:
    """Replies with the first param; to a frame with a part, as a server does."""
    if isinstance(document, list):
        replies = [echo(it, [], is_frame) for it in document if "id" in it]
        return b"[" + b",".join(replies) + b"]"
    if "id" not in document:
        return b""
    params = document.get("params") or [None]
    value = next(iter(params.values())) if isinstance(params, dict) else params[0]
    if not is_frame or not parts:
        return result(value, document["id"])
    return pack({"jsonrpc": "2.0", "id": document["id"], "result": value}, *parts)
