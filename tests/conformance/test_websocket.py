"""WebSocket, by the client `ws` of Node: calls, and an application that echoes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import programs
import pytest
from limits import LimitedServer

ROOT = Path(__file__).resolve().parents[2]
WS = ROOT / ".bench/conformance/ws"
if not (WS / "package.json").exists():
    pytest.skip("make test-conformance gets ws, by npm", allow_module_level=True)

# Sends each text whole and in fragments of a length, and checks that it returns.
CLIENT = """
const WebSocket = require(process.argv[1]);
const [url, kind] = process.argv.slice(2);
const socket = new WebSocket(url, kind == "calls" ? ["jsonrpc"] : []);
const texts = [];
for (const length of [0, 1, 60, 125, 126, 127, 1000, 65535, 65536, 200000]) {
    texts.push("\u00e9".repeat(length / 2) + "x".repeat(length % 2));
}
const wrap = (text, id) => kind == "calls"
    ? JSON.stringify({jsonrpc: "2.0", method: "echo", params: [text], id})
    : text;
const unwrap = (data) => kind == "calls" ? JSON.parse(data).result : data.toString();
const counts = {messages: 0, pongs: 0};
let expected = [];

function send(text, pieces, binary) {
    const data = Buffer.from(wrap(text, counts.messages));
    const length = Math.ceil(data.length / pieces) || 1;
    expected.push(text);
    if (data.length == 0) return socket.send(data, {binary});
    for (let at = 0; at < data.length; at += length) {
        const fin = at + length >= data.length;
        socket.send(data.subarray(at, at + length), {binary, fin});
        if (!fin) socket.ping("between");
    }
}

socket.on("open", () => {
    for (const text of texts) {
        for (const pieces of [1, 2, 7, 100]) {
            for (const binary of [false, true]) send(text, pieces, binary);
        }
    }
});
socket.on("message", (data) => {
    if (unwrap(data) !== expected[counts.messages]) throw new Error(`message ${counts.messages}`);
    counts.messages += 1;
    if (counts.messages == expected.length) socket.close(4001, "done");
});
socket.on("pong", (data) => {
    if (data.toString() !== "between") throw new Error(data);
    counts.pongs += 1;
});
socket.on("close", (code) => {
    const {extensions, protocol} = socket;
    console.log(JSON.stringify({code, extensions, protocol, ...counts}));
});
"""


def _check(url: str, kind: str) -> None:
    command = [programs.require("node"), "-e", CLIENT, str(WS), url, kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen.pop("pongs") > 1000
    protocol = "jsonrpc" if kind == "calls" else ""
    assert seen == {"code": 4001, "extensions": "", "protocol": protocol, "messages": 80}


def test_calls(peer: LimitedServer) -> None:
    _check(f"ws://127.0.0.1:{peer.port}/ws", "calls")


def test_an_application(peer: LimitedServer) -> None:
    _check(f"ws://127.0.0.1:{peer.port}/echoes", "echoes")
