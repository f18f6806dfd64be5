"""Two calls on one connection."""

import sys

import requests

CALL = {"jsonrpc": "2.0", "method": "sum", "params": {"a": 55, "b": 21}, "id": 1}
with requests.Session() as session:
    for _ in range(2):
        session.post(sys.argv[1], json=CALL)
