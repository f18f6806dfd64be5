"""Two calls on one connection."""

import sys

import httpx

CALL = {"jsonrpc": "2.0", "method": "sum", "params": {"a": 55, "b": 21}, "id": 1}
with httpx.Client() as client:
    for _ in range(2):
        client.post(sys.argv[1], json=CALL)
