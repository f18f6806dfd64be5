"""Groups of functions and routes, which share the beginning of their names and options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from ucall._server import checked
from ucall._server.function_decorators import Auth, FunctionDecorators

if TYPE_CHECKING:
    from ucall._core import Call, Context

__all__ = ["Group", "Registration", "Route", "registrations"]


Function = TypeVar("Function", bound=Callable[..., object])
Hook = TypeVar("Hook", bound=Callable[["Context", "Call"], object])
AnyHook = Callable[["Context", "Call"], Any]


class Registration(NamedTuple):
    """A function to be registered: the arguments of `ucall._functions.table.Functions.add`."""

    function: Callable[..., object]
    name: str | None
    options: dict[str, Any]


class Route(NamedTuple):
    """A route to be registered: the arguments of `ucall._functions.table.Functions.add_route`."""

    function: Callable[..., object]
    path: str
    options: dict[str, Any]
    #: Whether it says that the server has ``auth``.
    needs_auth: bool = False


class _Shared(NamedTuple):
    """What the functions and the routes of a group have in common."""

    prefix: str = ""
    path: str = ""
    auth: Auth | Literal[False] | None = None
    timeout_ms: float | None = None
    scopes: tuple[str, ...] = ()
    middleware: tuple[AnyHook, ...] = ()

    def around(self, inner: _Shared) -> _Shared:
        """What the functions of a group in this one have in common."""
        return _Shared(
            self.prefix + inner.prefix,
            self.path + inner.path,
            self.auth if inner.auth is None else inner.auth,
            self.timeout_ms if inner.timeout_ms is None else inner.timeout_ms,
            self.scopes + inner.scopes,
            self.middleware + inner.middleware,
        )

    def apply(self, registration: Registration) -> Registration:
        """The registration of a function of the group, with all of its options."""
        from ucall._functions import signatures

        function, name, options = registration
        name = signatures.name_of(function) if name is None else name
        own = options["auth"], options["timeout_ms"], options["scopes"]
        whole = self.around(_Shared(name, "", *own))
        shared = {
            "auth": whole.auth,
            "timeout_ms": whole.timeout_ms,
            "scopes": whole.scopes,
            "middleware": whole.middleware,
        }
        return Registration(function, whole.prefix, options | shared)

    def apply_to_route(self, route: Route) -> Route:
        """The registration of a route of the group, with all of its options."""
        function, path, options, _ = route
        path = self.path + path
        auth: bool | None = options["auth"]
        if auth is None:
            if self.scopes or callable(self.auth):
                has = "scopes" if self.scopes else "an auth of its own"
                raise TypeError(
                    f"{path}: its group has {has}, which routes do not have: expected auth=True "
                    "at the route for the server's auth alone, or auth=False for none"
                )
            return Route(function, path, options | {"auth": self.auth is not False})
        return Route(function, path, options, needs_auth=auth)


class Group(FunctionDecorators):
    """Functions and routes of a module, which a server includes::

        orders = ucall.Group("orders.", timeout_ms=500)

        @orders
        def create(item: str) -> int: ...

        server.include(orders)  # serves orders.create

    It has the decorators of a server that register functions. Nothing is registered before a server
    includes it, so the module needs no server.

    Args:
        prefix: The beginning of the functions' names.
        path: The beginning of the routes' paths, such as ``"/orders"``: see `Group.http`.
        auth: Of functions that have none of their own; see `ucall.Server.add`.
        timeout_ms: Of functions that have none of their own; see `ucall.Server.add`.
        scopes: What the caller's token must allow, besides the function's own scopes.
        middleware: Hooks around the calls of its functions, within those of the server: see
            `ucall.Server.middleware`. The first is outermost.

    Raises:
        TypeError, ValueError: An option is invalid.
    """

    def __init__(
        self,
        prefix: str = "",
        *,
        path: str = "",
        auth: Auth | Literal[False] | None = None,
        timeout_ms: float | None = None,
        scopes: Iterable[str] = (),
        middleware: Iterable[AnyHook] = (),
    ) -> None:
        if timeout_ms is not None and not timeout_ms > 0:
            raise ValueError(f"timeout_ms: expected milliseconds above 0, got {timeout_ms}")
        checked.own_auth("group", auth)
        prefix, path = checked.text("prefix", prefix), checked.text("path", path)
        if path and (path[0] != "/" or path[-1] == "/" or "//" in path):
            raise ValueError(f"path: expected one such as '/orders', got {path!r}")
        self._shared = _Shared(prefix, path, auth, timeout_ms, tuple(checked.scopes(scopes)))
        self._members: list[Registration | Route | Group] = []
        self._hooks: list[AnyHook] = []
        self._is_served = False
        for hook in middleware:
            self.middleware(hook)

    def middleware(self, hook: Hook) -> Hook:
        """Registers a function to run around the calls of the group's functions, also of those that
        it has already: see `ucall.Server.middleware`. That of a group in it runs within.

        Raises:
            RuntimeError: A server has included this group already.
            TypeError: It is no function of the context and the call.
        """
        from ucall._functions.hooks import checked as checked_hook

        self._check_open()
        self._hooks.append(checked_hook(hook))
        return hook

    def http(
        self,
        path: str,
        *,
        methods: Iterable[str] = ("GET",),
        auth: bool | None = None,
        threads: bool | None = None,
        stream_body: bool = False,
        max_body_bytes: int | None = None,
    ) -> Callable[[Function], Function]:
        """Registers a function that answers HTTP requests other than calls, at a path below that of
        the group: see `ucall.Server.http`. Hooks and ``timeout_ms`` are for functions alone.

        Args:
            path: What follows the group's path.
            methods: See `ucall.Server.http`.
            auth: Whether requests must pass the server's ``auth``, which there must be then. By
                default they must pass it if there is one, unless the group has ``auth=False``. In a
                group with ``scopes``, or an ``auth`` function of its own, it has to be said,
                because routes have neither.
            threads: See `ucall.Server.http`.
            stream_body: See `ucall.Server.http`.
            max_body_bytes: See `ucall.Server.http`.

        Raises:
            RuntimeError: A server has included this group already.
            TypeError, ValueError: An option is invalid.
        """
        if path and path[0] != "/":
            raise ValueError(f"path: expected one such as '/about', or '', got {path!r}")
        if auth is not None:
            checked.flag("auth", auth)

        def add(function: Function) -> Function:
            options = {
                # Several servers may include the group.
                "methods": methods if isinstance(methods, str) else tuple(methods),
                "auth": auth,
                "threads": threads,
                "stream_body": stream_body,
                "max_body_bytes": max_body_bytes,
            }
            self._add(Route(function, path, options))
            return function

        return add

    def include(self, group: Group) -> None:
        """Adds the functions and routes of another group: its prefix and path follow those of this
        one, its scopes and hooks are added, and its own ``auth`` and ``timeout_ms`` come first.

        Raises:
            RuntimeError: A server has included this group already.
            ValueError: The other group is this one, or includes it.
        """
        if any(it is self for it in _groups(checked.instance("group", group, Group))):
            raise ValueError("group: expected one that does not include this group")
        self._add(group)

    def _add_function(
        self, function: Callable[..., object], name: str | None, **options: Any
    ) -> None:
        options["scopes"] = tuple(checked.scopes(options["scopes"]))
        self._add(Registration(function, name, options))

    def _add(self, member: Registration | Route | Group) -> None:
        self._check_open()
        self._members.append(member)

    def _check_open(self) -> None:
        if self._is_served:
            raise RuntimeError(
                "a server has included this group already: add to it before server.include(group)"
            )


def registrations(group: Group) -> list[Registration | Route]:
    """The functions and routes of a group, and of the groups in it, with all of their options.
    Nothing may be added to it from then on."""
    members = list(_registrations(checked.instance("group", group, Group), _Shared()))
    for it in _groups(group):
        it._is_served = True
    return members


def _registrations(group: Group, outer: _Shared) -> Iterator[Registration | Route]:
    shared = outer.around(group._shared._replace(middleware=tuple(group._hooks)))
    for member in group._members:
        if isinstance(member, Group):
            yield from _registrations(member, shared)
        elif isinstance(member, Route):
            yield shared.apply_to_route(member)
        else:
            yield shared.apply(member)


def _groups(group: Group) -> Iterator[Group]:
    """A group and all groups in it."""
    yield group
    for member in group._members:
        if isinstance(member, Group):
            yield from _groups(member)
