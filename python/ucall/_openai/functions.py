"""The functions behind the models, and their calls within the process."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ucall import aio
from ucall._client.options import check_header
from ucall._functions import signatures
from ucall._openai.errors import ApiError
from ucall._server import in_process
from ucall.schema.description import describe_by_name
from ucall.schema.types import Schemas

if TYPE_CHECKING:
    from ucall import Process
    from ucall._core import HttpRequest
    from ucall.server import Server

__all__ = ["Caller", "Calls", "Function", "Json", "Served", "model_named", "models_of"]

Json = dict[str, Any]

#: A function, or the name of its method.
Served = Callable[..., object] | str
#: Calls of a peer at the same time whose results come whole, as those of embeddings.
_CONNECTIONS_MAX = 100
#: Peers without a request whose connections are kept.
_PEERS_MAX = 16
#: Headers of a request that are not those of the calls that it makes, besides those that the client
#: sets itself.
_OWN_HEADERS = frozenset(
    {
        *("accept", "accept-encoding", "expect", "keep-alive", "origin", "proxy-connection"),
        *("te", "trailer"),
    }
)


class Function(NamedTuple):
    """A function of a server.

    Args:
        name: Of its method.
        params: The names of its params, in their order.
        takes_others: Whether it takes params of any name.
        takes_list: Whether its first param is a list.
        yields: Whether it is a generator.
    """

    name: str
    params: tuple[str, ...]
    takes_others: bool
    takes_list: bool
    yields: bool

    def takes(self, name: str) -> bool:
        """Whether it has a param of this name."""
        return self.takes_others or name in self.params


def models_of(
    server: Server, option: str, served: Served | Mapping[str, Served] | None
) -> dict[str, Function]:
    """The functions behind models, by the models' names.

    Raises:
        TypeError: One is no function of the server.
    """
    if served is None:
        return {}
    if isinstance(served, Mapping):
        return {name: _described(server, option, it) for name, it in served.items()}
    function = _described(server, option, served)
    return {function.name: function}


def model_named(models: Mapping[str, Function], members: Json) -> Function:
    """The function of the model that a request names.

    Raises:
        ApiError: There is no such model.
    """
    name = members.get("model")
    function = models.get(name) if isinstance(name, str) else None
    if function is None:
        known = ", ".join(models)
        raise ApiError(
            f"model: expected one of {known}, got {name!r}", "model", 404, "model_not_found"
        )
    return function


def _described(server: Server, option: str, served: Served) -> Function:
    methods = server._functions.methods
    name = served if isinstance(served, str) else _name_of(served, methods.served)
    if name not in methods.served:
        raise TypeError(f"{option}: expected a function of the server, got {served!r}: @server")
    method = describe_by_name(name, methods.served[name], Schemas(methods.types))
    params = method.params or []
    names = tuple(it.name for it in params if it.takes_rest is None)
    if not names:
        raise TypeError(f"{option}: {name} has no params by name")
    return Function(
        name,
        names,
        any(it.takes_rest == "named" for it in params),
        params[0].schema.get("type") == "array",
        method.item is not None,
    )


def _name_of(function: Callable[..., object], served: Mapping[str, Any]) -> str:
    found = (name for name, it in served.items() if it.function is function)
    return next(found, None) or signatures.name_of(function)


class Caller:
    """Calls the functions of a server for its routes, on the server's event loop.

    A call has the headers and the peer of its request, so that the server's ``auth``, its limits of
    each caller and the function's context have the caller of the request.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._clients: OrderedDict[str, _Shared] = OrderedDict()
        server.on_shutdown(self._close)

    @contextlib.contextmanager
    def calls_of(self, request: HttpRequest) -> Iterator[Calls]:
        """The calls that a request makes. Requests of one peer share connections."""
        peer = repr(request.peer)
        shared = self._clients.get(peer)
        if shared is None:
            shared = self._clients[peer] = _Shared(self._client_of(request.peer))
        self._clients.move_to_end(peer)
        shared.users += 1
        passed_on = {it: value for it, value in request.headers.items() if _is_passed_on(it, value)}
        try:
            yield Calls(shared.client.with_options(headers=passed_on))
        finally:
            shared.users -= 1
            self._close_unused()

    def _client_of(self, peer: tuple[str, int] | Process | None) -> aio.Client:
        has_tls, path = self._server._tls is not None, self._server._functions._paths[0]
        client = aio.Client(
            f"{'https' if has_tls else 'http'}://localhost{path}",
            timeout=None,
            verify=not has_tls,
            max_connections=_CONNECTIONS_MAX,
        )
        in_process.connect_client(client, self._server, peer)
        return client

    def _close_unused(self) -> None:
        unused = [it for it, shared in self._clients.items() if not shared.users]
        for peer in unused[: max(0, len(self._clients) - _PEERS_MAX)]:
            self._clients.pop(peer).client._pool.close()

    def _close(self) -> None:
        while self._clients:
            self._clients.popitem()[1].client._pool.close()


class _Shared:
    """The client of a peer's requests, and how many of them use it."""

    def __init__(self, client: aio.Client) -> None:
        self.client = client
        self.users = 0


class Calls:
    """The calls of one request."""

    def __init__(self, client: aio.Client) -> None:
        self._client = client

    async def call(self, function: Function, arguments: Json) -> Any:
        """The result of a call.

        Raises:
            ucall.RPCError: The call failed.
            ucall.ConnectionError: The server stops.
        """
        response = await self._client.call(function.name, **arguments)
        return response.json

    async def items(self, function: Function, arguments: Json) -> AsyncGenerator[Any]:
        """Yields what a function yields, or the result of one that does not.

        Raises what `call` does.
        """
        async with self._client.stream.call(function.name, **arguments) as stream:
            async for item in stream:
                yield item
            if not function.yields:
                yield stream.result


def _is_passed_on(name: str, value: str) -> bool:
    """Whether the calls of a request have one of its headers, of which a client may send fewer than
    a server receives."""
    try:
        check_header(name, value)
    except ValueError:
        return False
    return name not in _OWN_HEADERS
