"""The response to a call."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ucall._core import Reply
from ucall.errors import RPCError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

__all__ = ["Reading", "Response"]

_UNREAD: Any = object()


class Reading:
    """What the responses of a client need to read their results.

    Args:
        image_pixels_max: Width times height of an image.
        want_frames: Is called when a result in base64 was read as bytes.
    """

    __slots__ = ("image_pixels_max", "want_frames")

    def __init__(self, image_pixels_max: int, want_frames: Callable[[], None]) -> None:
        self.image_pixels_max = image_pixels_max
        self.want_frames = want_frames


class Response:
    """The reply to one call.

    Each attribute parses the reply on first use, in its own form. If the call failed, ``json``,
    ``bytes``, ``numpy`` and ``image`` raise `ucall.RPCError`.
    """

    __slots__ = ("_json", "_reading", "_reply")

    def __init__(self, reply: Reply | None, reading: Reading) -> None:
        self._reply = reply
        self._reading = reading
        self._json = _UNREAD

    @property
    def data(self) -> Any:
        """The reply object: ``{"jsonrpc": "2.0", "id": 1, "result": 5}``, or one with an error."""
        return self._received().data()

    @property
    def id(self) -> Any:
        """The id of the call."""
        return self._received().id

    @property
    def text(self) -> bytes:
        """The reply object as received: JSON in UTF-8."""
        return self._received().text

    @property
    def error(self) -> RPCError | None:
        """The error that the server replied with; None if the call succeeded."""
        reply = self._received()
        return _error_of(reply.error()) if reply.is_error else None

    def raise_for_status(self) -> None:
        """Raises the error that the server replied with, if any.

        Raises:
            ucall.RPCError: With code, message and data.
        """
        self._succeeded()

    @property
    def json(self) -> Any:
        """The result in JSON's types: None, bool, int, float, str, list or dict."""
        if self._json is _UNREAD:
            self._json = self._succeeded().result()
        return self._json

    @property
    def bytes(self) -> bytes:
        """The bytes of a result that is bytes, or base64.

        Raises:
            ValueError: The result is not base64 (RFC 4648, section 4).
        """
        data = self._binary()
        return data if isinstance(data, bytes) else bytes(data)

    @property
    def numpy(self) -> NDArray[Any]:
        """The array of a result that is a `.npy` file, or nested lists of numbers.

        One that came as a binary part is a view of the memory that it was received in.

        Raises:
            ImportError: NumPy is not installed.
            ValueError: The result is neither, is pickled, or its length does not match its shape.
        """
        from ucall.types.arrays import ArrayType, decode_array
        from ucall.types.messages import require

        require("numpy", "response.numpy")
        reply = self._succeeded()
        if reply.has_result_part:
            array: NDArray[Any] = reply.result_array()
            return array
        if not isinstance(self.json, list):
            return decode_array(self._binary())
        return ArrayType().decode(self.json)

    @property
    def image(self) -> Image:
        """The image of a result that is an image file.

        Raises:
            ImportError: Pillow is not installed.
            ValueError: The result is not a valid PNG, JPEG, WebP, TIFF, GIF or BMP, or has more
                pixels than the client's ``max_image_pixels``.
        """
        from ucall.types.images import decode_image

        return decode_image(self._binary(), self._reading.image_pixels_max)

    def __repr__(self) -> str:
        if self._reply is None:
            return "<ucall.client.Response, not sent yet>"
        return f"<ucall.client.Response {self.text[:100].decode(errors='replace')}>"

    def _binary(self) -> builtins.bytes | memoryview:
        """The bytes of a result: a part in place, or decoded from base64."""
        reply = self._succeeded()
        if (part := reply.result_part()) is not None:
            return part
        data = reply.result_bytes()
        self._reading.want_frames()
        return data

    def _received(self) -> Reply:
        if self._reply is None:
            raise RuntimeError("the batch has not been sent yet")
        return self._reply

    def _succeeded(self) -> Reply:
        reply = self._received()
        if reply.is_error:
            raise _error_of(reply.error())
        return reply


def _error_of(error: Any) -> RPCError:
    """The exception for an error object, which may have members of any type."""
    if not isinstance(error, dict):
        return RPCError(0, "the server replied with an error that is not an object", error)
    code, message = error.get("code"), error.get("message")
    code = code if isinstance(code, int) and not isinstance(code, bool) else 0
    return RPCError(code, str(message), error.get("data"))
