"""examples/openai/openai_server.py, called with OpenAI's own client."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

import ucall

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/openai/openai_server.py"


def test_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    openai: Any = pytest.importorskip("openai")
    made = ucall.Server
    monkeypatch.setattr(ucall, "Server", lambda **_: made(port=0))
    with runpy.run_path(str(EXAMPLE))["server"] as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        messages = [{"role": "user", "content": "one two"}]
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            answer = client.chat.completions.create(model="echo-1", messages=messages)
            assert answer.choices[0].message.content == "one two "
            found = client.embeddings.create(model="letters-1", input=["tea", "onion"])
            assert [it.embedding for it in found.data] == [
                [1, 1, 1, 0, 0, 0, 0],
                [0, 0, 0, 2, 1, 2, 0],
            ]
        with ucall.client.Client("127.0.0.1", server.port) as client:
            assert client.embed("tea").json == [1, 1, 1, 0, 0, 0, 0]
