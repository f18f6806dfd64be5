"""`ucall.js` in Node, with a server that the tests control and with ucall's."""

from __future__ import annotations

import gzip
import re

from node import MODULE, TOKEN, RunNode, Serve, package

import ucall
import ucall.auth

#: Of the module without comments. Minified it is smaller.
BYTES_MAX = 6 * 1024


def test_the_client(run_node: RunNode) -> None:
    run_node("--test", "client.test.mjs")


def test_with_the_server(run_node: RunNode, serve: Serve) -> None:
    package("eventsource-parser")
    port = serve().port
    secure_port = serve(auth=ucall.auth.bearer({TOKEN: "alice"})).port
    has_messages = "1" if hasattr(ucall.Context, "notify") else ""
    run_node(
        *("--test", "server.test.mjs"),
        PORT=port,
        SECURE_PORT=secure_port,
        TOKEN=TOKEN,
        HAS_MESSAGES=has_messages,
    )


def test_the_module_is_small() -> None:
    text = re.sub(
        r"/\*\*.*?\*/|^ *//[^\n]*", "", MODULE.read_text(), flags=re.DOTALL | re.MULTILINE
    )
    assert len(gzip.compress(text.encode())) < BYTES_MAX
