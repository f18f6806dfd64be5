"""The server under attack, in a process of its own.

python -m served ENGINE OPTIONS: prints its port, then serves until it is killed.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from typing import Any

import ucall


def main() -> None:
    engine, options = sys.argv[1], json.loads(sys.argv[2])
    has_arrays = options.pop("arrays", False)
    serves_models = options.pop("inference", False)
    has_mount = options.pop("mount", False)
    server: ucall.Server = importlib.import_module(f"ucall.{engine}").Server(
        port=0, **ucall.options.arguments(options)
    )

    @server
    def echo(value: Any) -> Any:
        return value

    @server
    def add(a: int, b: int) -> int:
        return a + b

    @server
    def text(length: int) -> str:
        return "x" * length

    @server
    def fail() -> None:
        raise RuntimeError("a secret of the server's")

    @server
    def unwritable() -> object:
        return object()

    @server
    def recurse() -> Any:
        nested: list[Any] = []
        nested.append(nested)
        return nested

    @server
    def leave() -> None:
        sys.exit(3)

    @server
    async def wait(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "waited"

    held: list[asyncio.Future[None]] = []

    @server
    async def hold() -> str:
        held.append(asyncio.get_running_loop().create_future())
        await held[-1]
        return "held"

    @server
    def release() -> None:
        while held:
            held.pop().set_result(None)

    @server
    def state() -> dict[str, int]:
        return {"connections": server.stats()["connections"], "waiting": len(held)}

    if has_arrays:
        import served_arrays

        server.add(served_arrays.total)
        server.add(served_arrays.size)

    if serves_models:
        server.inference(["total"])

    if has_mount:
        import mounted_app

        server.mount("/app", mounted_app.app)

    if options.get("mcp"):
        from ucall.mcp import elicit

        @server
        def confirm(ctx: ucall.Context) -> bool:
            return bool(elicit(ctx, "Sure?", {"sure": bool}, key="sure").content["sure"])

    server.on_startup(lambda: print(server.port, flush=True))
    server.run()


if __name__ == "__main__":
    main()
