"""Describes the functions of a server: their params, results, errors and docs, with JSON Schemas.

`describe` makes the `Description` of a server; `Description.openrpc` writes it as an OpenRPC
document, which a server answers to ``rpc.discover`` and ``GET /openrpc.json``, and
`Description.openapi` as the OpenAPI document of ``GET /openapi.json``.
"""

from __future__ import annotations

from ucall.schema.methods import Error, Method, Parameter, Route
from ucall.schema.openrpc import Description
from ucall.server import describe

__all__ = ["Description", "Error", "Method", "Parameter", "Route", "describe"]
