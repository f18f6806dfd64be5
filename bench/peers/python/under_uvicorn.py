"""Runs an ASGI application as its users would: uvloop, httptools, no access log."""

from typing import Any

import uvicorn


def run(app: Any, port: int) -> None:
    uvicorn.run(
        app, port=port, loop="uvloop", http="httptools", log_level="error", access_log=False
    )
