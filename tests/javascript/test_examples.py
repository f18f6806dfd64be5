"""Every JavaScript example in docs/javascript.md runs in Node, and has the values that it shows.

The ```js blocks are one program, which calls the server of the ```python block. `// => value` in
the line after an expression is checked. A block after `<!-- not run: why -->` does not run.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from node import ROOT, RunNode

import ucall

PAGE = ROOT / "docs" / "javascript.md"
BLOCK = re.compile(
    r"^(<!-- not run: [^\n]*-->\n)?```(js|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
SHOWN = re.compile(r"^(\S.*);\n// => (.+)$", re.MULTILINE)
HEAD = """
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

globalThis.WebSocket ??= createRequire(process.env.NODE_PATH + "/ws/")("ws");
const { Client, NDArray, decodeArray } = await import(pathToFileURL(process.env.UCALL_JS));
"""


def test_examples(run_node: RunNode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocks = [(kind, text) for mark, kind, text in BLOCK.findall(PAGE.read_text()) if not mark]
    made = ucall.Server
    monkeypatch.setattr(ucall, "Server", lambda **_: made(port=0))
    monkeypatch.setattr(made, "run", made.start)
    names: dict[str, ucall.Server] = {}
    exec("".join(text for kind, text in blocks if kind == "python"), names)
    script = "".join(text for kind, text in blocks if kind == "js")
    script = script.replace('import { Client, NDArray, decodeArray } from "/ucall.js";\n', HEAD)
    script = script.replace("8545", str(names["server"].port))
    script, checks = SHOWN.subn(r"assert.deepEqual(\1, \2);", script)
    assert checks > 8
    (tmp_path / "page.mjs").write_text(script)
    try:
        run_node(tmp_path / "page.mjs")
    finally:
        names["server"].stop()
