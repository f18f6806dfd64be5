"""Resources and resource templates: what clients read by a URI."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ucall._core import Context
from ucall._functions import signatures
from ucall._mcp.calls import Call, Host, MethodRunner, Mode, mode_of
from ucall._mcp.completion import Completers, Completion
from ucall._mcp.pages import page
from ucall._mcp.templates import Template, is_template
from ucall._mcp.texts import Signature, describe, invalid
from ucall.schema.docstrings import read_docs
from ucall.types.messages import kind_of

__all__ = ["Resources"]


@dataclass(frozen=True)
class _Resource:
    """A function that gives the content of a resource, or of all that match a template."""

    function: Callable[..., Any]
    signature: Signature
    mode: Mode
    mime_type: str | None


class Resources:
    """The resources of a server.

    Args:
        completion: Gets the completers of the templates' variables.
    """

    def __init__(self, host: Host, completion: Completion) -> None:
        self._host = host
        self._completion = completion
        self._resources: dict[str, _Resource] = {}
        self._templates: dict[str, tuple[Template, _Resource]] = {}
        #: What the lists show, by URI.
        self._listed: dict[str, dict[str, Any]] = {}
        self._listed_templates: dict[str, dict[str, Any]] = {}
        self._reads = MethodRunner(host, "resources/read", self._begin)

    def add(
        self,
        function: Callable[..., object],
        uri: str,
        *,
        name: str | None,
        title: str | None,
        mime_type: str | None,
        threads: bool | None,
        complete: Completers,
    ) -> None:
        """Registers a function: see `ucall.Server.resource`."""
        name = signatures.name_of(function) if name is None else name
        docs = read_docs(function)
        signature = describe(function, name, docs)
        mode = mode_of(self._host, function, name, threads)
        template = Template(uri) if is_template(uri) else None
        _check_variables(uri, name, signature, template)
        self._check_unused(uri, function)
        shown = {
            "name": name,
            "title": title,
            "description": "\n\n".join(filter(None, (docs.summary, docs.description))) or None,
            "mimeType": mime_type,
        }
        shown = {key: value for key, value in shown.items() if value is not None}
        resource = _Resource(function, signature, mode, mime_type)
        if template is None:
            self._completion.check(name, {}, complete)
            self._resources = {**self._resources, uri: resource}
            self._listed = {**self._listed, uri: {"uri": uri} | shown}
        else:
            self._completion.add("ref/resource", uri, name, signature, complete)
            self._templates = {**self._templates, uri: (template, resource)}
            self._listed_templates = {**self._listed_templates, uri: {"uriTemplate": uri} | shown}
        self._announce(mode)

    def _announce(self, mode: Mode) -> None:
        if "resources" not in self._host.registry.capabilities:
            self._host.registry.announce("resources", listChanged=True, subscribe=True)
            self._host.registry.has_resource = lambda uri: self._find(uri) is not None
            self._host.registry.add_method("resources/list", self._list)
            self._host.registry.add_method("resources/templates/list", self._list_templates)
        self._reads.add(mode)
        self._host.registry.report_change("resources")

    def _list(self, params: dict[str, Any], version: str) -> dict[str, Any]:
        result = page(self._listed, params, "resources")
        return self._host.registry.complete(result, version, ttl_ms=0)

    def _list_templates(self, params: dict[str, Any], version: str) -> dict[str, Any]:
        result = page(self._listed_templates, params, "resourceTemplates")
        return self._host.registry.complete(result, version, ttl_ms=0)

    def _begin(self, params: dict[str, Any], version: str, ctx: Context) -> Call:
        uri = params.get("uri")
        if not isinstance(uri, str):
            raise invalid(f"uri: expected a string, got {kind_of(uri)}")
        found = self._find(uri)
        if found is None:
            raise invalid({"uri": uri}, "Resource not found")
        resource, values = found
        arguments = resource.signature.bind(values, ctx, "uri")
        function = functools.partial(resource.function, **arguments)
        return Call(
            resource.mode, function, functools.partial(self._finish, uri, resource, version)
        )

    def _find(self, uri: str) -> tuple[_Resource, dict[str, str]] | None:
        if uri in self._resources:
            return self._resources[uri], {}
        for template, resource in self._templates.values():
            values = template.match(uri)
            if values is not None:
                return resource, values
        return None

    def _finish(
        self, uri: str, resource: _Resource, version: str, content: object
    ) -> dict[str, Any]:
        if isinstance(content, str):
            shown = {"mimeType": "text/plain", "text": content}
        elif isinstance(content, (bytes, bytearray, memoryview)):
            blob = base64.b64encode(content).decode()
            shown = {"mimeType": "application/octet-stream", "blob": blob}
        else:
            shown = {"mimeType": "application/json", "text": self._json(content)}
        if resource.mime_type is not None:
            shown["mimeType"] = resource.mime_type
        result = {"contents": [{"uri": uri} | shown]}
        return self._host.registry.complete(result, version, ttl_ms=0)

    def _json(self, content: object) -> str:
        encode = self._host.registry.methods.types.encode

        def write(part: object) -> object:
            if isinstance(part, (bytes, bytearray, memoryview)):
                return base64.b64encode(part).decode()
            return encode(part)

        return json.dumps(content, ensure_ascii=False, allow_nan=False, default=write)

    def _check_unused(self, uri: str, function: Callable[..., object]) -> None:
        templates = {key: resource for key, (_, resource) in self._templates.items()}
        known = (self._resources | templates).get(uri)
        if known is not None and not signatures.is_redefinition(function, known.function):
            raise ValueError(f"{uri!r} is already the URI of {known.function!r}")


def _check_variables(uri: str, name: str, signature: Signature, template: Template | None) -> None:
    """Refuses a function whose parameters are not the variables.

    Raises:
        TypeError: The message names them.
    """
    variables = [] if template is None else template.names
    for variable in variables:
        if variable not in signature.arguments:
            raise TypeError(f"{name}: has no parameter {variable!r}, which is in {uri!r}")
    for argument in signature.arguments.values():
        if argument.is_required and argument.name not in variables:
            raise TypeError(f"{name}: parameter {argument.name!r}: is not in {uri!r}")
