"""Reads the OpenRPC document with which a server describes its methods.

The document may come from a server of any make, also a hostile one. `Document` checks its form,
and `Document.resolve` is the only way to a schema: it checks each member's type and counts the
steps, so that no reader of a description can take more than its `Budget`.
"""

from ucall._openrpc.budget import DESCRIPTION_BYTES_MAX, DescriptionError
from ucall._openrpc.document import Document, Method, Param
from ucall._openrpc.schema import BINARY_TYPES, NO_DEFAULT, Schema, Subschema, branches
from ucall._openrpc.text import wrap

__all__ = [
    "BINARY_TYPES",
    "DESCRIPTION_BYTES_MAX",
    "NO_DEFAULT",
    "DescriptionError",
    "Document",
    "Method",
    "Param",
    "Schema",
    "Subschema",
    "branches",
    "wrap",
]
