"""The decorators of a server that register what MCP offers beside tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from ucall._functions.table import Functions

__all__ = ["ContentDecorators"]

Function = TypeVar("Function", bound=Callable[..., object])
#: Completes an argument: a function of its beginning, or all values.
Completer = Callable[..., object] | Iterable[str]


class ContentDecorators:
    """The part of `ucall.Server` that registers resources and prompts."""

    _functions: Functions

    def resource(
        self,
        uri: str,
        *,
        name: str | None = None,
        title: str | None = None,
        mime_type: str | None = None,
        threads: bool | None = None,
        complete: Mapping[str, Completer] | None = None,
    ) -> Callable[[Function], Function]:
        """Registers a function that gives the content of a URI to clients of MCP::

            @server.resource("config://app", mime_type="application/toml")
            def config() -> str:
                return Path("app.toml").read_text()

            @server.resource("notes://{day}")
            def notes(day: str) -> list[str]: ...

        The function returns a str, bytes, or any other value that a served function may return,
        which is sent as JSON. It may be async, and take a `ucall.Context`. A URI with variables
        (RFC 6570, level 1) is a template: each is a parameter of the function, and stands for a
        part of the URI without ``/``. Its value is percent-decoded. No URI matches whose value
        leaves a directory, such as ``..``, or is an absolute path.

        Args:
            uri: A URI, or a template.
            name: Its name; ``function.__name__`` by default.
            title: The name that people see. The function's docstring describes it.
            mime_type: By default that of text, of JSON or of bytes, as the content is.
            threads: Whether to run it in a thread, because it blocks; by default as the server.
            complete: By variables of a template, what they may be: a collection of texts, or a
                function, plain or async, that returns the texts for a beginning. It may take the
                values of other variables, a dict, as its second argument. A Literal, an Enum and a
                bool need none.

        Raises:
            RuntimeError: The server is made without ``mcp=True``.
            TypeError: The parameters are not the variables, or take what no text stands for.
            ValueError: It is no URI, or another function has it.
        """

        def add(function: Function) -> Function:
            content = self._functions.content("resource")
            content.resources.add(
                function,
                uri,
                name=name,
                title=title,
                mime_type=mime_type,
                threads=threads,
                complete=complete or {},
            )
            return function

        return add

    @overload
    def prompt(self, function: Function, /) -> Function: ...

    @overload
    def prompt(
        self,
        *,
        name: str | None = None,
        title: str | None = None,
        threads: bool | None = None,
        complete: Mapping[str, Completer] | None = None,
    ) -> Callable[[Function], Function]: ...

    def prompt(
        self,
        function: Any = None,
        *,
        name: str | None = None,
        title: str | None = None,
        threads: bool | None = None,
        complete: Mapping[str, Completer] | None = None,
    ) -> Any:
        """Registers a function that makes the messages of a prompt for clients of MCP::

            @server.prompt(title="Review", complete={"language": ["C", "Python", "Rust"]})
            def review(code: str, language: str = "Python") -> str:
                "Asks for a review of code."
                return f"Review this {language} code: {code}"

        Its parameters are the prompt's arguments, which are texts: str, int, float, bool, a Literal
        or an Enum. It returns a message, or a list of them: a str, a `ucall.mcp.Message`, or a
        block of content as the specification describes it. A text and a block alone are the user's.
        It may be async, and take a `ucall.Context`.

        Args:
            name: The prompt's name; ``function.__name__`` by default.
            title, threads, complete: See `resource`.

        Raises:
            RuntimeError, TypeError: See `resource`.
            ValueError: Another function has the name.
        """

        def add(function: Function) -> Function:
            content = self._functions.content("prompt")
            content.prompts.add(
                function, name=name, title=title, threads=threads, complete=complete or {}
            )
            return function

        return add if function is None else add(function)
