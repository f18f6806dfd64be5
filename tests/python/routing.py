"""What the tests of HTTP routes share."""

from __future__ import annotations

from typing import Any

import httpx

import ucall
from harness import HOST

#: How the function of a route runs.
WAYS = ["plain", "async", "threads"]


def http_client(server: ucall.Server, **options: Any) -> httpx.Client:
    return httpx.Client(base_url=f"http://{HOST}:{server.port}", timeout=60, **options)
