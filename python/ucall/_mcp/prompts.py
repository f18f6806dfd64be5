"""Prompts: messages that a user picks by name, made from arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ucall._core import Context
from ucall._functions import signatures
from ucall._mcp.calls import Call, Host, MethodRunner, Mode, mode_of
from ucall._mcp.completion import Completers, Completion
from ucall._mcp.pages import page
from ucall._mcp.texts import Argument, Signature, describe, invalid
from ucall.schema.docstrings import read_docs
from ucall.types.messages import kind_of, value_text

__all__ = ["Prompts"]


@dataclass(frozen=True)
class _Prompt:
    name: str
    function: Callable[..., Any]
    signature: Signature
    mode: Mode
    description: str | None


class Prompts:
    """The prompts of a server.

    Args:
        completion: Gets the completers of their arguments.
    """

    def __init__(self, host: Host, completion: Completion) -> None:
        self._host = host
        self._completion = completion
        self._prompts: dict[str, _Prompt] = {}
        #: What the list shows, by name.
        self._listed: dict[str, dict[str, Any]] = {}
        self._gets = MethodRunner(host, "prompts/get", self._begin)

    def add(
        self,
        function: Callable[..., object],
        *,
        name: str | None,
        title: str | None,
        threads: bool | None,
        complete: Completers,
    ) -> None:
        """Registers a function: see `ucall.Server.prompt`."""
        name = signatures.name_of(function) if name is None else name
        if not name:
            raise ValueError("name: expected the name of a prompt, got ''")
        docs = read_docs(function)
        signature = describe(function, name, docs)
        mode = mode_of(self._host, function, name, threads)
        known = self._prompts.get(name)
        if known is not None and not signatures.is_redefinition(function, known.function):
            raise ValueError(f"{name!r} is already the name of {known.function!r}")
        description = "\n\n".join(filter(None, (docs.summary, docs.description))) or None
        self._completion.add("ref/prompt", name, name, signature, complete)
        prompt = _Prompt(name, function, signature, mode, description)
        self._prompts = {**self._prompts, name: prompt}
        shown = {"name": name, "title": title, "description": description}
        shown = {key: value for key, value in shown.items() if value is not None}
        arguments = [_shown(argument) for argument in signature.arguments.values()]
        listed = shown | ({"arguments": arguments} if arguments else {})
        self._listed = {**self._listed, name: listed}
        if "prompts" not in self._host.registry.capabilities:
            self._host.registry.announce("prompts", listChanged=True)
            self._host.registry.add_method("prompts/list", self._list)
        self._gets.add(mode)
        self._host.registry.report_change("prompts")

    def _list(self, params: dict[str, Any], version: str) -> dict[str, Any]:
        result = page(self._listed, params, "prompts")
        return self._host.registry.complete(result, version, ttl_ms=0)

    def _begin(self, params: dict[str, Any], version: str, ctx: Context) -> Call:
        name = params.get("name")
        prompt = self._prompts.get(name) if isinstance(name, str) else None
        if prompt is None:
            raise invalid({"name": name}, "Unknown prompt")
        given = params.get("arguments")
        if given is not None and not isinstance(given, dict):
            raise invalid(f"arguments: expected an object, got {kind_of(given)}")
        arguments = prompt.signature.bind(given or {}, ctx, "arguments")
        function = functools.partial(prompt.function, **arguments)
        return Call(prompt.mode, function, functools.partial(self._finish, prompt, version))

    def _finish(self, prompt: _Prompt, version: str, returned: object) -> dict[str, Any]:
        messages = returned if isinstance(returned, (list, tuple)) else [returned]
        result: dict[str, Any] = {"messages": [_message(it, prompt.name) for it in messages]}
        if prompt.description is not None:
            result["description"] = prompt.description
        return self._host.registry.complete(result, version)


def _shown(argument: Argument) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": argument.name}
    if argument.description:
        shown["description"] = argument.description
    return shown | {"required": argument.is_required}


def _message(returned: object, name: str) -> dict[str, Any]:
    """A message as MCP has it: a text or a block is one of the user."""
    if isinstance(returned, str):
        return {"role": "user", "content": {"type": "text", "text": returned}}
    if isinstance(returned, Mapping) and "type" in returned:
        return {"role": "user", "content": dict(returned)}
    if isinstance(returned, Mapping) and returned.get("role") in ("user", "assistant"):
        content = returned.get("content")
        if isinstance(content, str):
            return {"role": returned["role"], "content": {"type": "text", "text": content}}
        if isinstance(content, Mapping):
            return dict(returned)
    raise TypeError(
        f"prompt {name}: expected a str, a message with role and content, or a list of them, got "
        f"{value_text(returned)}"
    )
