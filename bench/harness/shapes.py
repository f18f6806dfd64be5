"""The requests that real clients send: recorded heads, and calls whose ids and params change.

`bench/shapes/CLIENT.http` is what the client sent, recorded by `make bench-shapes`. A client's
requests have that head with their own length, and write JSON with its spaces.
"""

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path

from bench import OUTPUT, ROOT
from bench.harness import request

RECORDED = ROOT / "bench/shapes"
CLIENTS = ("wrk", "curl", "requests", "httpx", "aiohttp", "go", "node", "chromium")
#: Different requests of a client, repeated in turn.
COUNT = 64


def calls() -> list[dict]:
    """The same calls each time. The first is `sum(55, 21)`; the others have 1 to 9 digits each."""
    chosen = random.Random(8545)
    numbers = ([chosen.randrange(10 ** chosen.randint(1, 9)) for _ in "iab"] for _ in range(COUNT))
    first, *others = numbers
    first[:] = 1, 55, 21
    return [
        {"jsonrpc": "2.0", "method": "sum", "params": {"a": a, "b": b}, "id": number}
        for number, a, b in (first, *others)
    ]


def recorded(client: str) -> bytes:
    return (RECORDED / f"{client}.http").read_bytes()


def requests(client: str) -> list[bytes]:
    """The client's request for each of the calls, as it would send them."""
    head, _, body = recorded(client).partition(b"\r\n\r\n")
    separators = (", ", ": ") if b'": ' in body else (",", ":")
    bodies = (json.dumps(call, separators=separators).encode() for call in calls())
    return [with_length(head, len(body)) + b"\r\n\r\n" + body for body in bodies]


def with_length(head: bytes, length: int) -> bytes:
    replaced, count = re.subn(rb"(?i)(\r\ncontent-length: )\d+", rb"\g<1>%d" % length, head)
    if count != 1:
        raise ValueError(f"{count} lengths in {head!r}")
    return replaced


def files(clients: Sequence[str], protocol: str) -> list[Path]:
    """A file of requests for each client. Over raw TCP a request is its body."""
    found = []
    for client in clients:
        sent = requests(client)
        if protocol == "raw":
            sent = [it.partition(b"\r\n\r\n")[2] for it in sent]
        found.append(request.write(OUTPUT / f"requests-{protocol}-{client}", sent))
    return found
