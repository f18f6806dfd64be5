"""The tools of a server: what ``tools/list`` says of each function, and the form of its results.

A tool is described once, when the server starts or when its function is added to a running one.
Until then its result may refer to names that the program defines later.
"""

from __future__ import annotations

import json
import re
import threading
import typing
from typing import TYPE_CHECKING, Any, NamedTuple

from ucall import mcp
from ucall._core import Context, set_tools
from ucall._functions.results import annotation_of
from ucall._functions.tool_rules import ToolRules, check_header
from ucall._mcp.registry import Registry
from ucall.errors import RPCError
from ucall.schema.description import describe_by_name, is_passed_by_name
from ucall.schema.dialects import LOCAL, PREFIX, reached, rewritten, with_new_references
from ucall.schema.types import Schemas

if TYPE_CHECKING:
    from ucall._functions.methods import Served
    from ucall.types.registry import TypeRegistry

__all__ = ["Tools"]

Schema = dict[str, Any]

#: How long a client may keep the list, as functions may be added.
TTL_MS = 60_000

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")

#: What a schema may say that accepts any value.
_TEXTS = {"title", "description", "default", "examples"}


class Tool(NamedTuple):
    """A function as a tool.

    Args:
        served: The function.
        description: The tool in ``tools/list``.
        form: The form of its result: see `set_tools` of the core.
        result: The schema that the result of the function must fit, as text; ``None`` for any.
        headers: The params that clients also send as headers, with the ends of their names.
    """

    served: Served
    description: Schema
    form: str
    result: str | None
    headers: list[tuple[str, str]]


class Tools:
    """Describes the functions of a server as tools."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._methods = registry.methods
        self._lock = threading.Lock()
        self._known: dict[str, Tool] = {}
        #: The functions that clients know the tools of; ``None`` until the server starts.
        self._published: dict[str, Served] | None = None
        self._listed: list[Schema] = []
        #: What callers see that are not authenticated, if there are any.
        self._public: list[Schema] = []
        #: The tools, if any of them needs scopes.
        self._scoped: list[Tool] = []

    def register(self) -> None:
        """Has the server answer ``tools/list``, and checks the functions that it has."""
        for name, served in self._methods.served.items():
            self.check(name, served)
        self._registry.announce("tools", listChanged=True)
        self._registry.add_method("tools/list", self.list_tools)

    def check(self, name: str, served: Served) -> None:
        """Refuses a function that cannot be a tool, before it is added.

        Raises:
            TypeError: Its params cannot be passed by name, or an option does not fit it.
            ValueError: Its name is no tool's.
        """
        if served.tool is False:
            return
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} cannot be a tool's name, which has 1 to 128 of A-Z, a-z, 0-9, '_', '-' "
                "and '.': give another, name='...', or leave the function out, mcp=False"
            )
        if not is_passed_by_name(served):
            raise TypeError(
                f"{name}: a tool gets its params by name, and this takes some by position alone: "
                "name them, or leave the function out, mcp=False"
            )
        with self._lock:
            if self._published is not None:
                self._known[name] = self._tool(name, served)
            elif isinstance(served.tool, ToolRules):
                _Describer(name, served, self._methods.types).inputs()

    def change(self) -> None:
        """Has clients of a running server know of the functions that there are now."""
        with self._lock:
            is_running = self._published is not None
        if is_running:
            self.publish()

    def publish(self) -> None:
        """Describes the functions that there are now, for calls and for ``tools/list``."""
        with self._lock:
            served, before = self._methods.served, self._published
            if served is before:
                return
            tools = {
                name: self._tool(name, it) for name, it in served.items() if it.tool is not False
            }
            described = [(name, name, it.form, it.result, it.headers) for name, it in tools.items()]
            set_tools(self._registry.core, described)
            self._known, self._published = tools, served
            self._listed = [it.description for it in tools.values()]
            self._public = [it.description for it in tools.values() if it.served.auth is False]
            has_scopes = any(it.served.scopes for it in tools.values())
            self._scoped = list(tools.values()) if has_scopes else []
        if before is not None:
            for report in self._registry.on_tools_change:
                report()

    def list_tools(self, params: Schema, version: str, ctx: Context) -> Schema:
        """The answer to ``tools/list``: the tools that the caller may call, in the order in which
        they were added."""
        if params.get("cursor") is not None:
            raise RPCError(-32602, "Invalid params", "cursor: the list has one page")
        return self._registry.complete({"tools": self._allowed(ctx)}, version, ttl_ms=TTL_MS)

    def _allowed(self, ctx: Context) -> list[Schema]:
        if self._methods.has_auth and ctx.user is None:
            return self._public
        if not self._scoped:
            return self._listed
        scopes = getattr(ctx.user, "scopes", None)
        held = scopes if isinstance(scopes, (set, frozenset)) else frozenset()
        return [
            it.description
            for it in self._scoped
            if it.served.auth is not None or it.served.scopes <= held
        ]

    def _tool(self, name: str, served: Served) -> Tool:
        known = self._known.get(name)
        if known is not None and known.served is served:
            return known
        return _Describer(name, served, self._methods.types).tool()


class _Describer:
    """Describes one function."""

    def __init__(self, name: str, served: Served, types: TypeRegistry) -> None:
        self._name = name
        self._served = served
        self._rules = served.tool if isinstance(served.tool, ToolRules) else ToolRules()
        schemas = Schemas(types)
        self._method = describe_by_name(name, served, schemas)
        self._references = {PREFIX + it: LOCAL + it for it in schemas.components}
        self._components = {it: self._local(made) for it, made in schemas.components.items()}

    def tool(self) -> Tool:
        method, rules = self._method, self._rules
        inputs, headers = self.inputs()
        form, output, result = self._result()
        if rules.media_type is not None and form.partition(" ")[2] != rules.media_type:
            raise TypeError(f"{self._name}: media_type: is for a function that returns bytes")
        hints = {"idempotentHint": True} if self._served.is_idempotent else {}
        texts = [it for it in (method.summary, method.description) if it]
        described = {
            "name": self._name,
            **_given("title", rules.title),
            **_given("description", "\n\n".join(texts)),
            "inputSchema": inputs,
            **_given("outputSchema", output),
            **_given("annotations", {**rules.annotations, **hints}),
            **_given("_meta", self._access()),
        }
        text = None if result is None else json.dumps(result, ensure_ascii=False)
        return Tool(self._served, described, form, text, headers)

    def _access(self) -> Schema:
        """Who may call it, if that is not whoever may call the others: as OpenRPC says it."""
        served = self._served
        return {
            **({} if served.auth is None else {"x-auth": served.auth is not False}),
            **_given("x-scopes", sorted(served.scopes)),
        }

    def inputs(self) -> tuple[Schema, list[tuple[str, str]]]:
        """The schema of the params, as an object, and those that clients also send as headers.

        Raises:
            TypeError: A param cannot be sent as a header.
        """
        given = self._rules.input_schema
        schema = self._params() if given is None else dict(given)
        properties = dict(schema.get("properties", {}))
        headers: dict[str, str] = {}
        for param in self._rules.headers:
            if param not in properties:
                raise TypeError(f"{self._name}: headers: {param!r} is none of its params")
        for param, made in properties.items():
            header = self._rules.headers.get(param, made.get("x-mcp-header"))
            if header is None:
                continue
            if check_header(header).lower() in map(str.lower, headers.values()):
                raise TypeError(f"{self._name}: headers: two params have {header!r}")
            if all(isinstance(it, str) for it in made.get("enum", [None])):
                made = {"type": "string"} | made
            if made.get("type") not in ("string", "integer", "boolean"):
                problem = f"headers: {param!r}: expected a str, an int or a bool"
                raise TypeError(f"{self._name}: {problem}")
            headers[param] = header
            properties[param] = made | {"x-mcp-header": header}
        if headers:
            schema["properties"] = properties
        return schema, list(headers.items())

    def _params(self) -> Schema:
        params = self._method.params or []
        rest = [self._local(it.schema) for it in params if it.takes_rest]
        named = [it for it in params if not it.takes_rest]
        schema = {
            "type": "object",
            "properties": {
                it.name: self._local(it.schema) | _given("description", it.description)
                for it in named
            },
            **_given("required", [it.name for it in named if it.is_required]),
            "additionalProperties": rest[0]["additionalProperties"] if rest else False,
        }
        return self._whole(schema)

    def _result(self) -> tuple[str, Schema | None, Schema | None]:
        """The form of the result, and if it has structured content, the schemas of that and of the
        result itself."""
        annotation = annotation_of(self._served.function, self._served.hints)
        if mcp.ToolResult in (annotation, *typing.get_args(annotation)):
            return "result", None, None
        schema = self._local(self._method.result)
        if schema.get("contentEncoding") == "base64":
            media_type = self._rules.media_type or schema["contentMediaType"]
            kind = media_type.partition("/")[0]
            form = kind if kind in ("image", "audio") else "blob"
            return f"{form} {media_type}", None, None
        is_text = schema.get("type") in ("string", "null") and "enum" not in schema
        if is_text or schema.keys() <= _TEXTS:
            return "text", None, None
        text = _given("description", self._method.result_description)
        root = self._object(schema)
        if root is not None:
            described = self._whole(root | text)
            return "object", described, described
        properties = {"result": schema | text}
        wrapped = {"type": "object", "properties": properties, "required": ["result"]}
        return "value", self._whole(wrapped), self._whole(schema)

    def _object(self, schema: Schema) -> Schema | None:
        """The schema of an object, without a reference, which older clients refuse there; ``None``
        for that of another value."""
        if "$ref" in schema:
            inner = self._object(self._components[schema["$ref"].removeprefix(LOCAL)])
            others = {name: it for name, it in schema.items() if name != "$ref"}
            return None if inner is None else inner | others
        return schema if schema.get("type") == "object" else None

    def _whole(self, schema: Schema) -> Schema:
        """The schema with the components that it refers to."""
        definitions = reached("", {"": schema, **self._components})
        del definitions[""]
        return schema | _given("$defs", definitions)

    def _local(self, schema: Schema) -> Schema:
        """The schema with references within its tool, without what only clients of ucall read."""
        referring = with_new_references(schema, self._references)
        return typing.cast(Schema, rewritten(referring, _without_hints))


def _without_hints(made: Schema) -> Schema:
    made.pop("x-ucall", None)
    return made


def _given(name: str, value: object) -> Schema:
    """The member, unless it is empty."""
    return {name: value} if value else {}
