"""Records the requests that real clients send, into bench/shapes/CLIENT.http.

Each client of `bench/shapes/clients` posts `sum(55, 21)` twice on one connection; the second
request is kept, because some clients send more in the first. A client that is not installed keeps
its record.
"""

import argparse
import http.server
import json
import shutil
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
    "requests": [sys.executable, str(CLIENTS / "requests_client.py"), "{url}"],
    "httpx": [sys.executable, str(CLIENTS / "httpx_client.py"), "{url}"],
    "aiohttp": [sys.executable, str(CLIENTS / "aiohttp_client.py"), "{url}"],
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
COOKIES = ("session=5f1c2e8a9b7d4f60a3c1e5d7; Path=/", "theme=dark; Path=/")


class Recorder(http.server.BaseHTTPRequestHandler):
    """Answers every call with its sum, and keeps the bytes of each request."""

    protocol_version = "HTTP/1.1"
    requests: list[bytes]

    def parse_request(self) -> bool:
        # The names and the order of the fields as they were sent, which the parsed ones lose.
        self.rfile = Tee(self.rfile, self.raw_requestline)
        return super().parse_request()

    def do_GET(self) -> None:
        self.rfile = self.rfile.file
        self.reply(HTML.encode(), "text/html", *(("Set-Cookie", it) for it in COOKIES))

    def do_POST(self) -> None:
        tee = self.rfile
        tee.read(int(self.headers["Content-Length"]))
        self.rfile = tee.file
        self.requests.append(tee.taken)
        self.reply(b'{"jsonrpc":"2.0","id":1,"result":76}', "application/json")

    def reply(self, body: bytes, kind: str, *fields: tuple[str, str]) -> None:
        self.send_response(200)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), *fields):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_) -> None:
        """Prints nothing."""


class Tee:
    """A file that remembers what was read from it."""

    def __init__(self, file, taken: bytes) -> None:
        self.file, self.taken = file, taken

    def readline(self, *limit: int) -> bytes:
        return self._kept(self.file.readline(*limit))

    def read(self, count: int) -> bytes:
        return self._kept(self.file.read(count))

    def _kept(self, found: bytes) -> bytes:
        self.taken += found
        return found


def recorded(command: list[str]) -> bytes:
    """The client's second request. The port in it becomes 8545, ucall's."""
    requests: list[bytes] = []
    handler = type("Handler", (Recorder,), {"requests": requests})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
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
