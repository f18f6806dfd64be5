"""An application that echoes WebSocket messages, for conformance suites.

python tests/conformance/websocket_echo.py posix  # Prints the port, and serves until it is ended.
"""

from __future__ import annotations

import importlib
import signal
import sys
from typing import Any

import ucall

# Those of Autobahn's cases 9.
LIMITS = ucall.Limits(max_body_bytes=16 << 20, max_frame_bytes=16 << 20, max_message_frames=1 << 20)


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] != "websocket":
        return
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send(message | {"type": "websocket.send"})


if __name__ == "__main__":
    server: ucall.Server = importlib.import_module(f"ucall.{sys.argv[1]}").Server(
        port=0, limits=LIMITS
    )
    server.mount("/echoes", app)
    server.start()
    print(server.port, flush=True)
    signal.pause()
