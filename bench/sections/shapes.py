"""Records the requests that real clients send, into bench/shapes/CLIENT.http.

Each client of `bench/shapes/clients` posts `sum(55, 21)` twice on one connection; the second
request is kept, because some clients send more in the first. A client that is not installed keeps
its record.
"""

import argparse
import itertools
import json
import re
import shutil
import socketserver
import subprocess
import sys
import threading

from bench import ROOT

SHAPES = ROOT / "bench/shapes"
CLIENTS = SHAPES / "clients"
CALL = {"jsonrpc": "2.0", "method": "sum", "params": {"a": 55, "b": 21}, "id": 1}
BROWSER = "chromium"
COMMANDS = {
    "wrk": ["wrk", "-t1", "-c1", "-d1s", "-s", str(ROOT / "bench/wrk/load.lua"), "{url}"],
    "curl": ["bash", str(CLIENTS / "curl.sh"), "{url}"],
    **{
        name: [sys.executable, str(CLIENTS / "clients.py"), name, "{url}"]
        for name in ("requests", "httpx", "aiohttp")
    },
    "go": ["go", "run", str(CLIENTS / "client.go"), "{url}"],
    "node": ["node", str(CLIENTS / "client.mjs"), "{url}"],
    "chromium": [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--dump-dom",
        "--virtual-time-budget=9000",
        "{url}",
    ],
}
OPTIONS = {"clients": {"nargs": "*"}}
HTML = """<!doctype html><title>sum</title><script>
const call = {jsonrpc: "2.0", method: "sum", params: {a: 55, b: 21}, id: 1}
const post = () => fetch("/", {
  method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(call)})
post().then(reply => reply.text()).then(post)
</script>"""
COOKIES = (
    "Set-Cookie: session=5f1c2e8a9b7d4f60a3c1e5d7; Path=/\r\nSet-Cookie: theme=dark; Path=/\r\n"
)


class Recorder(socketserver.StreamRequestHandler):
    """Answers every call with its sum, and keeps the bytes of each: a parsed request has lost the
    names and the order of its fields. A GET gets the page."""

    requests: list[bytes]

    def handle(self) -> None:
        while head := self.head():
            if head.startswith(b"GET"):
                self.reply(HTML.encode(), "text/html", COOKIES)
                continue
            length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
            self.requests.append(head + self.rfile.read(int(length[1])))
            self.reply(b'{"jsonrpc":"2.0","id":1,"result":76}', "application/json")

    def head(self) -> bytes:
        lines = iter(self.rfile.readline, b"")
        head = b"".join(itertools.takewhile(b"\r\n".__ne__, lines))
        return head and head + b"\r\n"

    def reply(self, body: bytes, kind: str, fields: str = "") -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        self.wfile.write(f"{head}{fields}\r\n".encode() + body)


def recorded(command: list[str]) -> bytes:
    """The client's second request. The port in it becomes 8545, ucall's."""
    requests: list[bytes] = []
    handler = type("Handler", (Recorder,), {"requests": requests})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        url = f"http://127.0.0.1:{port}/"
        done = subprocess.run(
            [word.format(url=url) for word in command], capture_output=True, timeout=120
        )
        server.shutdown()
    if len(requests) < 2:
        sys.exit(f"{command[0]} sent {len(requests)} requests: {done.stderr.decode()[-300:]}")
    return requests[1].replace(f"127.0.0.1:{port}".encode(), b"127.0.0.1:8545")


def check(request: bytes) -> None:
    _, _, body = request.partition(b"\r\n\r\n")
    if json.loads(body) != CALL:
        sys.exit(f"another call: {body!r}")


def run(options: argparse.Namespace) -> None:
    for name in options.clients or COMMANDS:
        command = COMMANDS[name]
        if not shutil.which(command[0]):
            print(f"{name}: not installed")
            continue
        request = recorded(command)
        check(request)
        (SHAPES / f"{name}.http").write_bytes(request)
        print(f"{name}: {len(request)} bytes, {request.count(b': ')} fields")
