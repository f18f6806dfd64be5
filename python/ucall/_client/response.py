"""What a call returned, in the shape that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ucall._core import Reply
from ucall.errors import RPCError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

__all__ = ["Response"]

_UNREAD: Any = object()


class Response:
    """The reply to one call.

    The result is read when it is asked for, in the shape that it is asked for. Asked for anything
    but ``data``, ``id`` or ``error``, the reply of a call that failed raises `ucall.RPCError`.
    """

    __slots__ = ("_image_pixels_max", "_json", "_reply")

    def __init__(self, reply: Reply | None, image_pixels_max: int) -> None:
        self._reply = reply
        self._image_pixels_max = image_pixels_max
        self._json = _UNREAD

    @property
    def data(self) -> Any:
        """The whole reply object, error or not: ``{"jsonrpc": "2.0", "id": 1, "result": 5}``."""
        return self._received().data()

    @property
    def id(self) -> Any:
        """The id that was replied to."""
        return self._received().id

    @property
    def text(self) -> bytes:
        """The reply object as it came."""
        return self._received().text

    @property
    def error(self) -> RPCError | None:
        """The error that the server replied with, if it did. It is not raised."""
        reply = self._received()
        return _error_of(reply.error()) if reply.is_error else None

    def raise_for_status(self) -> None:
        """Raises the error that the server replied with, if it did.

        Raises:
            ucall.RPCError: With code, message and data.
        """
        self._succeeded()

    @property
    def json(self) -> Any:
        """The result, as JSON has it: None, bool, int, float, str, list or dict."""
        if self._json is _UNREAD:
            self._json = self._succeeded().result()
        return self._json

    @property
    def bytes(self) -> bytes:
        """The bytes that the result is the base64 of.

        Raises:
            ValueError: It is not base64 (RFC 4648, section 4).
        """
        return self._succeeded().result_bytes()

    @property
    def numpy(self) -> NDArray[Any]:
        """The array that the result is: a `.npy` in base64, or nested lists of numbers.

        Raises:
            ImportError: NumPy is not installed.
            ValueError: It is none, is pickled, or claims another size than it has.
        """
        from ucall.types.arrays import check_dtype, decode_array
        from ucall.types.messages import require

        if not isinstance(self.json, list):
            return decode_array(self.bytes)
        require("numpy", "response.numpy")
        import numpy

        array = numpy.array(self.json)
        try:
            check_dtype(array.dtype)
        except TypeError:
            raise ValueError("the result is no array of numbers") from None
        return array

    @property
    def image(self) -> Image:
        """The image that the result is: an encoded one in base64.

        Raises:
            ValueError: It is none of PNG, JPEG, WebP, TIFF, GIF and BMP, is broken, or has more
                pixels than the client's ``max_image_pixels``.
        """
        from ucall.types.images import decode_image

        return decode_image(self.bytes, self._image_pixels_max)

    def __repr__(self) -> str:
        if self._reply is None:
            return "<ucall.client.Response, not sent yet>"
        return f"<ucall.client.Response {self.text[:100].decode(errors='replace')}>"

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
    """The exception for an error object, whatever the server put into it."""
    if not isinstance(error, dict):
        return RPCError(0, "the server replied with an error that is no object", error)
    code, message = error.get("code"), error.get("message")
    code = code if isinstance(code, int) and not isinstance(code, bool) else 0
    return RPCError(code, str(message), error.get("data"))
