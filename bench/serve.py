"""ucall's servers in Python that benchmarks load.

    python bench/serve.py sum --engine uring

Prints `listening on PORT` once the socket is bound. SIGTERM ends it. The module of an engine does
not fall back to the other one, so the figures have the right name. What a kind alone needs is
imported for it alone, because the memory of a server is a figure.
"""

import argparse
import asyncio
import importlib
import pathlib
import sys
import threading
import time

import ucall

#: Objects that a garbage collection visits.
LIVE = 300_000
PAYLOAD_BYTES_MAX = 64 << 20
PEERS = pathlib.Path(__file__).parent / "peers/python"
#: Of the table of the server of arrays.
ROWS, WIDTH = 20_000, 768


def sum(a: int, b: int):
    return a + b


def sum_with_garbage(a: int, b: int):
    cycle = []
    cycle.append(cycle)
    return a + b


async def sum_async(a: int, b: int):
    return a + b


def compute() -> None:
    while True:
        pass


def sums(new, given):
    """`sum`, with `--beside` next to a thread that computes, or with much garbage."""
    sums.live = [[] for _ in range(LIVE)] if given.beside == "garbage" else None
    if given.beside == "thread":
        threading.Thread(target=compute, daemon=True).start()
    tls = ucall.TLS(certfile=given.ssl_certfile) if given.ssl_certfile else None
    server = new(port=given.port, tls=tls)
    server(sum if sums.live is None else sum_with_garbage, name="sum")
    return server


def echo(new, given):
    server = new(port=given.port)

    @server
    def echo_text(text: str):
        return text

    return server


def echo_bytes(data: bytes):
    return data


def arrays(new, given):
    """Functions of arrays, bytes and images. Over a Unix socket with `--uds`."""
    import numpy
    import PIL.Image
    from numpy.typing import NDArray

    how = {"uds": given.uds, "trusted": given.trusted} if given.uds else {"port": given.port}
    most = ucall.Limits(max_body_bytes=PAYLOAD_BYTES_MAX, max_reply_bytes=PAYLOAD_BYTES_MAX)
    server = new(**how, limits=most)
    table = numpy.arange(ROWS * WIDTH, dtype=numpy.float32).reshape(ROWS, WIDTH)

    @server
    def echo(values: NDArray[numpy.float32]) -> NDArray[numpy.float32]:
        return values

    @server
    def floats(values: list[float]) -> list[float]:
        return values

    @server
    def brightest(images: NDArray[numpy.uint8]) -> NDArray[numpy.uint8]:
        return images.reshape(len(images), -1).max(axis=1)

    @server
    def lookup(rows: NDArray[numpy.int64]) -> NDArray[numpy.float32]:
        return table[rows]

    @server
    def resize(image: PIL.Image.Image, width: int, height: int) -> PIL.Image.Image:
        return image.resize((width, height))

    server.add(echo_bytes, name="bytes")
    server.add(sum)
    # An earlier build, which a run compares with today's, has none.
    if hasattr(server, "inference"):
        server.inference()
    return server


def guarded(new, given):
    """`sum`, long replies, and the number of connections; all time limits are those given."""
    times = ("head_timeout_s", "body_timeout_s", "idle_timeout_s", "send_timeout_s")
    server = new(port=given.port, timeouts=ucall.Timeouts(**dict.fromkeys(times, given.timeout_s)))
    server(sum)

    @server
    def text(length: int) -> str:
        return "x" * length

    @server
    def connections() -> int:
        return server.stats()["connections"]

    return server


def sleeper(new, given):
    """A function that sleeps, in a coroutine or in threads, and `sum`."""
    server = new(port=given.port)

    async def sleep_async():
        await asyncio.sleep(0.1)

    def sleep_blocking():
        time.sleep(0.1)

    if given.kind_of_sleep == "async":
        server.add(sleep_async, name="sleep")
        server.add(sum_async)
    else:
        server.add(sleep_blocking, name="sleep", threads=True)
    server.add(sum)
    return server


def relay(new, given):
    server = new(port=given.port)
    server.relay("sum", to=given.to)
    return server


def store(new, given):
    server = new(port=given.port)
    server.store("kv", given.path)
    return server


def udp(new, given):
    """`sum` over UDP and TCP; with `--dedupe` it keeps replies, in up to 1 GiB."""
    server = new(port=given.port, udp=ucall.UDP(dedupe=given.dedupe, max_dedupe_bytes=1 << 30))
    server(sum)
    return server


def mcp(new, given):
    """`sum` as a tool."""
    server = new(port=given.port, mcp=True)

    @server
    def sum(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    return server


def asgi(new, given):
    """The application that other projects serve, too."""
    sys.path.append(str(PEERS))
    from asgi_app import app

    server = new(port=given.port)
    server.mount("/", app)
    return server


OTHERS = (echo, arrays, guarded, sleeper, relay, store, udp, mcp, asgi)
KINDS = {"sum": sums, **{it.__name__: it for it in OTHERS}}


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--engine", choices=["posix", "uring"], required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ssl-certfile", help="a certificate and its key, for TLS")
    parser.add_argument("--beside", choices=["thread", "garbage"])
    parser.add_argument("--kind-of-sleep", choices=["async", "threads"], default="async")
    parser.add_argument("--timeout-s", type=float)
    parser.add_argument("--to")
    parser.add_argument("--path")
    parser.add_argument("--uds", help="a Unix socket instead of a port")
    parser.add_argument("--trusted", action="store_true", help="do not copy from shared memory")
    parser.add_argument("--dedupe", action="store_true")
    parser.add_argument("--loop", choices=["own", "uvloop"], default="own")
    return parser.parse_args(arguments)


def made(arguments: list[str]) -> ucall.Server:
    given = parsed(arguments)
    new = importlib.import_module(f"ucall.{given.engine}").Server
    return KINDS[given.kind](new, given)


if __name__ == "__main__":
    server = made(sys.argv[1:])
    server.on_startup(lambda: print(f"listening on {server.port}", flush=True))
    if parsed(sys.argv[1:]).loop == "uvloop":
        import uvloop

        uvloop.run(server.serve())
    else:
        server.run()
