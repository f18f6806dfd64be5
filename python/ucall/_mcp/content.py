"""What a server offers beside its tools: resources, prompts, completion of their arguments."""

from __future__ import annotations

from ucall._mcp.calls import Host
from ucall._mcp.completion import Completion
from ucall._mcp.prompts import Prompts
from ucall._mcp.resources import Resources

__all__ = ["Content"]


class Content:
    """The resources and prompts of a server."""

    def __init__(self, host: Host) -> None:
        completion = Completion(host)
        self.resources = Resources(host, completion)
        self.prompts = Prompts(host, completion)
