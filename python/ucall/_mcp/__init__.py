"""Serves functions as tools of the Model Context Protocol, which the core speaks at ``/mcp``.

The core finds the function of a tool, calls it and wraps its result. This package answers what is
asked beside calls: it is imported for a server with ``mcp`` alone.
"""

from __future__ import annotations

from ucall._mcp import methods
from ucall._mcp.registry import Registry
from ucall._mcp.subscriptions import Subscriptions
from ucall._mcp.tools import Tools

__all__ = ["Registry", "Tools", "enable"]


def enable(registry: Registry) -> Tools:
    """Has a server answer all methods of MCP, and returns its tools."""
    registry.bus.register()
    registry.add_method("$/response", registry.exchanges.respond)
    methods.register(registry)
    tools = Tools(registry)
    tools.register()
    Subscriptions(registry).register()
    return tools
