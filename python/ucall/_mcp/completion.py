"""Completes the arguments of prompts, and the variables of resource templates."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ucall._core import Context
from ucall._functions import signatures
from ucall._mcp.calls import Call, Host, MethodRunner, Mode, mode_of
from ucall._mcp.texts import Signature, invalid
from ucall.types.aliases import resolve_alias
from ucall.types.messages import kind_of

__all__ = ["Completer", "Completers", "Completion"]

#: Values of one reply, by the specification.
VALUES_MAX = 100

Completer: TypeAlias = Callable[..., Any] | Iterable[str]
Completers: TypeAlias = Mapping[str, Completer]


@dataclass(frozen=True)
class _Function:
    """A function that completes an argument."""

    function: Callable[..., Any]
    mode: Mode
    takes_arguments: bool
    context: str | None


class Completion:
    """The completers of a server."""

    def __init__(self, host: Host) -> None:
        self._host = host
        #: By the type of the reference and its name, the completers of each argument.
        self._completers: dict[tuple[str, str], dict[str, _Function | tuple[str, ...]]] = {}
        self._calls = MethodRunner(host, "completion/complete", self._begin)

    def add(
        self, kind: str, key: str, name: str, signature: Signature, complete: Completers
    ) -> None:
        """Registers the completers of a prompt or a template.

        Raises:
            TypeError: One is for an argument that there is not, or takes other params.
        """
        self.check(name, signature.arguments, complete)
        completers: dict[str, _Function | tuple[str, ...]] = {
            argument.name: argument.members for argument in signature.arguments.values()
        }
        for argument, given in complete.items():
            completers[argument] = (
                self._described(given, f"{name}: complete: {argument}")
                if callable(given)
                else tuple(map(str, given))
            )
        self._completers = {**self._completers, (kind, key): completers}
        if not completers:
            return
        self._host.registry.capabilities.setdefault("completions", {})
        for completer in completers.values():
            self._calls.add(completer.mode if isinstance(completer, _Function) else "inline")

    @staticmethod
    def check(name: str, arguments: Mapping[str, object], complete: Completers) -> None:
        """Refuses completers of arguments that there are not."""
        for argument in complete:
            if argument not in arguments:
                raise TypeError(f"{name}: complete: there is no argument {argument!r}")

    def _described(self, function: Callable[..., Any], name: str) -> _Function:
        mode = mode_of(self._host, function, name, None)
        hints = signatures.evaluate_annotations(function, name)
        context = None
        positional = 0
        for parameter in inspect.signature(function).parameters.values():
            if resolve_alias(hints.get(parameter.name, parameter.annotation)) is Context:
                context = parameter.name
            elif parameter.default is parameter.empty:
                positional += parameter.kind is not parameter.VAR_KEYWORD
        if positional not in (1, 2):
            raise TypeError(f"{name}: expected a function of the text, or of it and the arguments")
        return _Function(function, mode, positional == 2, context)

    def _begin(self, params: dict[str, Any], version: str, ctx: Context) -> Call:
        reference, argument = _object(params, "ref"), _object(params, "argument")
        completers = self._completers.get(_target(reference))
        if completers is None:
            raise invalid("ref: there is no such prompt or resource template")
        name, value = argument.get("name"), argument.get("value")
        if not isinstance(value, str):
            raise invalid(f"argument.value: expected a string, got {kind_of(value)}")
        completer = completers.get(name) if isinstance(name, str) else None
        if completer is None:
            expected = ", ".join(completers) or "no arguments"
            raise invalid(f"argument.name: unexpected, expected {expected}")
        finish = functools.partial(self._finish, version)
        if isinstance(completer, tuple):
            return Call("inline", functools.partial(_matching, completer, value), finish)
        given: list[Any] = [value]
        if completer.takes_arguments:
            context = params.get("context")
            others = context.get("arguments") if isinstance(context, dict) else None
            given.append(others if isinstance(others, dict) else {})
        options = {} if completer.context is None else {completer.context: ctx}
        return Call(
            completer.mode, functools.partial(completer.function, *given, **options), finish
        )

    def _finish(self, version: str, found: Iterable[object]) -> dict[str, Any]:
        values = list(map(str, found))
        completion = {
            "values": values[:VALUES_MAX],
            "total": len(values),
            "hasMore": len(values) > VALUES_MAX,
        }
        return self._host.registry.complete({"completion": completion}, version)


def _target(reference: Mapping[str, Any]) -> tuple[str, str]:
    kind = reference.get("type")
    return str(kind), str(reference.get("name" if kind == "ref/prompt" else "uri"))


def _object(params: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = params.get(name)
    if not isinstance(found, dict):
        raise invalid(f"{name}: expected an object, got {kind_of(found)}")
    return found


def _matching(values: Iterable[str], beginning: str) -> list[str]:
    """The values that begin so, whatever the case."""
    folded = beginning.casefold()
    return [value for value in values if value.casefold().startswith(folded)]
