"""The methods of a server, as its description shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from ucall._functions.tool_rules import ToolRules
    from ucall.types.registry import TypeRegistry

__all__ = ["Methods", "NativeMethod", "ReplyOptions", "Served", "ServedRoute"]


class ReplyOptions(NamedTuple):
    """The options of a server about replies, which its processes need as well."""

    debug: bool
    max_reply_bytes: int


class Served:
    """A function under the name of a method.

    Args:
        function: The function.
        hints: Its annotations, by the names of its parameters and ``"return"``.
        takes_batches: Whether each of its parameters is a list, with an item of every call in a
            batch.
        is_idempotent: Whether a call may run twice.
        tool: Whether it is a tool of MCP, with its options if it has any.
        auth: The challenge of its own ``auth``; ``None`` if the server's is asked, ``False`` if
            anyone may call it.
        scopes: What a caller must be allowed.
        runs: How it runs, in words: see `registration.described_run`.
    """

    def __init__(
        self,
        function: Callable[..., object],
        hints: dict[str, object],
        takes_batches: bool,
        is_idempotent: bool,
        tool: ToolRules | bool,
        auth: str | Literal[False] | None,
        scopes: frozenset[str],
        runs: str,
    ) -> None:
        self.function = function
        self.hints = hints
        self.takes_batches = takes_batches
        self.is_idempotent = is_idempotent
        self.tool = tool
        self.auth = auth
        self.scopes = scopes
        self.runs = runs


class NativeMethod:
    """A method of a store, without a function.

    Args:
        name: Its name.
        summary: What it does.
        params: The JSON Schema of the params by name, as text, in the order of those by position.
        result: The JSON Schema of the result, as text.
        item: That of an item, if it is a stream.
    """

    def __init__(self, name: str, summary: str, params: str, result: str, item: str | None) -> None:
        self.name = name
        self.summary = summary
        self.params = params
        self.result = result
        self.item = item


class ServedRoute(NamedTuple):
    """A function that answers HTTP requests other than calls."""

    function: Callable[..., object]
    needs_auth: bool


class Methods:
    """The functions, routes and native methods of a server, and the types that they use.

    Args:
        image_pixels: The pixels that an image may have, and all images of a call together.
        challenge: The ``WWW-Authenticate`` of a server with ``auth``.
        base: What the paths of functions begin with; empty for ``/name``.
    """

    def __init__(
        self, image_pixels: tuple[int, int], challenge: str | None = None, base: str = ""
    ) -> None:
        self._image_pixels = image_pixels
        self.challenge = challenge
        self.base = base
        #: By the names of their methods, and replaced whenever one is added.
        self.served: dict[str, Served] = {}
        #: The methods that no function serves: replaced whenever one is added.
        self.natives: dict[str, NativeMethod] = {}
        #: By method and path: replaced whenever one is added.
        self.routes: dict[tuple[str, str], ServedRoute] = {}
        self._types: TypeRegistry | None = None

    @property
    def has_auth(self) -> bool:
        """Whether the server has ``auth``."""
        return self.challenge is not None

    @property
    def types(self) -> TypeRegistry:
        """The types besides JSON's; imported with the first function."""
        if self._types is None:
            from ucall.types.registry import TypeRegistry

            self._types = TypeRegistry(*self._image_pixels)
        return self._types
