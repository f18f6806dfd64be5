"""Groups of functions, which share the beginning of their names and options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from ucall._server import checked
from ucall._server.function_decorators import Auth, FunctionDecorators

if TYPE_CHECKING:
    from ucall._core import Call, Context

__all__ = ["Group", "Registration", "registrations"]


Hook = TypeVar("Hook", bound=Callable[["Context", "Call"], object])
AnyHook = Callable[["Context", "Call"], Any]


class Registration(NamedTuple):
    """A function to be registered: the arguments of `ucall._functions.table.Functions.add`."""

    function: Callable[..., object]
    name: str | None
    options: dict[str, Any]


class _Shared(NamedTuple):
    """What the functions of a group have in common."""

    prefix: str = ""
    auth: Auth | Literal[False] | None = None
    timeout_ms: float | None = None
    scopes: tuple[str, ...] = ()
    middleware: tuple[AnyHook, ...] = ()

    def around(self, inner: _Shared) -> _Shared:
        """What the functions of a group in this one have in common."""
        return _Shared(
            self.prefix + inner.prefix,
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
        whole = self.around(_Shared(name, *own))
        shared = {
            "auth": whole.auth,
            "timeout_ms": whole.timeout_ms,
            "scopes": whole.scopes,
            "middleware": whole.middleware,
        }
        return Registration(function, whole.prefix, options | shared)


class Group(FunctionDecorators):
    """Functions of a module, which a server includes::

        orders = ucall.Group("orders.", timeout_ms=500)

        @orders
        def create(item: str) -> int: ...

        server.include(orders)  # serves orders.create

    It has the decorators of a server that register functions. Nothing is registered before a server
    includes it, so the module needs no server.

    Args:
        prefix: The beginning of the functions' names.
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
        auth: Auth | Literal[False] | None = None,
        timeout_ms: float | None = None,
        scopes: Iterable[str] = (),
        middleware: Iterable[AnyHook] = (),
    ) -> None:
        if timeout_ms is not None and not timeout_ms > 0:
            raise ValueError(f"timeout_ms: expected milliseconds above 0, got {timeout_ms}")
        checked.own_auth("group", auth)
        prefix = checked.text("prefix", prefix)
        self._shared = _Shared(prefix, auth, timeout_ms, tuple(checked.scopes(scopes)))
        self._members: list[Registration | Group] = []
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

    def include(self, group: Group) -> None:
        """Adds the functions of another group: its prefix follows the prefix of this one, its
        scopes and hooks are added, and its own ``auth`` and ``timeout_ms`` come first.

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

    def _add(self, member: Registration | Group) -> None:
        self._check_open()
        self._members.append(member)

    def _check_open(self) -> None:
        if self._is_served:
            raise RuntimeError(
                "a server has included this group already: add to it before server.include(group)"
            )


def registrations(group: Group) -> list[Registration]:
    """The functions of a group, and of the groups in it, with all of their options. Nothing may be
    added to it from then on."""
    for it in _groups(checked.instance("group", group, Group)):
        it._is_served = True
    return list(_registrations(group, _Shared()))


def _registrations(group: Group, outer: _Shared) -> Iterator[Registration]:
    shared = outer.around(group._shared._replace(middleware=tuple(group._hooks)))
    for member in group._members:
        if isinstance(member, Group):
            yield from _registrations(member, shared)
        else:
            yield shared.apply(member)


def _groups(group: Group) -> Iterator[Group]:
    """A group and all groups in it."""
    yield group
    for member in group._members:
        if isinstance(member, Group):
            yield from _groups(member)
